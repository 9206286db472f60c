//! A small generator of hostile input, the same in every run.

/// Xorshift: fast also in a debug build, and enough for tests.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Texts that try to forge a separator, a label, a hash or a second form of the same value.
const PIECES: &[&str] = &[
    "a",
    "b",
    "A",
    "/",
    "//",
    ".",
    "..",
    "%",
    "%25",
    "%2F",
    "%2f",
    "%2C",
    "%3D",
    "%3A",
    "%ff",
    "%FE",
    "%c3%bc",
    "%zz",
    "%4",
    ",",
    "=",
    "#",
    ":",
    "+",
    "~",
    "@",
    "{id}",
    "*",
    "!",
    "path=",
    ",header.x=",
    "#sha256=",
    "%00",
    "%20",
    "%E2%82",
];

/// Appends up to four hostile pieces.
pub(crate) fn push_hostile(rng: &mut Rng, out: &mut String) {
    for _ in 0..rng.below(5) {
        out.push_str(rng.pick(PIECES));
    }
}
