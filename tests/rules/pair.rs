//! Keys in Redis, and the same keys under the rules.
//!
//! Every call is made on both, and both must say the same and tell the same instances. The calls of
//! one step, one for each key, are started together, so that many of them share a script. The rules
//! run on the server's clock, read before and after the call: the call took effect in between. What
//! the rules stamped is therefore uncertain by half of that time, and this uncertainty is carried
//! along (`blur`). A call whose answer depends on it is put off until its answer is certain. If a
//! slow machine makes it uncertain nevertheless, because a lease ended while the call was under
//! way, the sequence ends there: its answer is compared with nothing.

use std::{collections::BTreeMap, time::Duration};

use futures_util::StreamExt;
use redis::{
    aio::{MultiplexedConnection, PubSub},
    pipe,
};
use tokio::time::{sleep, timeout};
use tower_distributed_lock::{
    LockKey,
    store::{
        Instance, Mode, Owner, RedisStore, Renew,
        rules::{Moment, Slot},
    },
};

use crate::{
    call::{Answer, Call, Said, Told},
    support::{PATIENCE, redis_server::RedisServer},
};

/// How far Redis may round a time: it counts milliseconds, on a clock that it reads once a call.
const ROUNDING: Duration = Duration::from_millis(2);

/// How long a call usually takes.
const USUAL: Duration = Duration::from_millis(4);

/// With times as uncertain as this, a call that is not clear is not waited for.
const BLURRED: Duration = Duration::from_millis(10);

/// The instances that use the keys of one worker, and its connections.
pub(crate) struct Worker {
    store: RedisStore,
    connection: MultiplexedConnection,
    pub(crate) instances: Vec<Instance>,
    /// The channels of all instances.
    hints: PubSub,
    marks: u64,
    now: Moment,
}

/// Keys in Redis, and the same keys under the rules.
pub(crate) struct Pairs<'a> {
    worker: &'a mut Worker,
    pairs: Vec<Pair>,
    /// By how much the times in the slots may be wrong.
    blur: Duration,
}

/// A key in Redis, and the same key under the rules.
struct Pair {
    key: LockKey,
    slot: Slot,
    last_token: u64,
    /// The exclusive holder for whom somebody has queued, if only for a while.
    marked: Option<Owner>,
}

/// How the calls of a step ended.
#[derive(Debug)]
pub(crate) enum Compared {
    /// Both said this, for each key.
    Equal(Vec<(Answer, Told)>),
    /// What a call should have said depends on the moment at which it took effect.
    Unclear,
}

impl Worker {
    pub(crate) async fn new(store: &RedisStore, server: &RedisServer, instances: usize) -> Self {
        let instances: Vec<_> = (0..instances).map(|_| Instance::new()).collect();
        let mut hints = server.subscription().await;
        let channels: Vec<_> = instances.iter().map(channel).collect();
        hints.subscribe(channels).await.unwrap();
        Self {
            store: store.clone(),
            connection: server.connection().await,
            instances,
            hints,
            marks: 0,
            now: Moment(0),
        }
    }

    /// Reads the server's clock, and takes all hints so far, by their keys. They come in order, so a
    /// mark behind them shows that all of them are there.
    async fn clock_and_hints(&mut self) -> BTreeMap<String, Told> {
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        let mut command = pipe();
        command.cmd("TIME");
        let channel = channel(&self.instances[0]);
        command.cmd("PUBLISH").arg(channel).arg(&mark).ignore();
        let ((seconds, micros),): ((u64, u64),) =
            command.query_async(&mut self.connection).await.unwrap();
        self.now = Moment(seconds * 1_000_000 + micros);
        let mut told = BTreeMap::<_, Told>::new();
        let mut messages = self.hints.on_message();
        loop {
            let message = timeout(PATIENCE, messages.next()).await;
            let message = message.expect("a hint arrives").expect("the server is up");
            let text: String = message.get_payload().unwrap();
            if text == mark {
                return told;
            }
            let (name, about) = text.split_once(' ').expect("a hint about a key");
            let instance = message.get_channel_name().rsplit(':').next();
            let to = instance.unwrap().parse().unwrap();
            let told = told.entry(about.to_owned()).or_default();
            told.insert((to, name.to_owned()));
        }
    }
}

/// The channel on which Redis sends the hints of an instance.
fn channel(instance: &Instance) -> String {
    format!("tdl:2:hints:{instance}")
}

impl<'a> Pairs<'a> {
    pub(crate) async fn new(worker: &'a mut Worker, keys: Vec<LockKey>) -> Self {
        worker.clock_and_hints().await;
        let pair = |key| Pair {
            key,
            slot: Slot::default(),
            last_token: 0,
            marked: None,
        };
        Self {
            worker,
            pairs: keys.into_iter().map(pair).collect(),
            blur: Duration::ZERO,
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &LockKey> {
        self.pairs.iter().map(|pair| &pair.key)
    }

    /// The first key.
    pub(crate) fn key(&self) -> &LockKey {
        &self.pairs[0].key
    }

    pub(crate) fn blur(&self) -> Duration {
        self.blur
    }

    /// Reads the clock, after a time without calls.
    pub(crate) async fn read_clock(&mut self) {
        self.worker.clock_and_hints().await;
    }

    /// Makes a call for each key on both, and compares. The error says how they differ.
    pub(crate) async fn step(&mut self, calls: &[Call]) -> Result<Compared, String> {
        loop {
            let (now, margin) = (self.worker.now, self.blur + ROUNDING);
            if self.are_clear(calls, back(now, margin), now + margin + USUAL) {
                break;
            }
            if self.blur > BLURRED {
                return Ok(Compared::Unclear);
            }
            sleep(USUAL).await;
            self.read_clock().await;
        }
        let before = self.worker.now;
        let asked = calls.iter().zip(&self.pairs);
        let asked = asked.map(|(call, pair)| (call, &pair.key, pair.last_token));
        let by_redis = Call::all_on_redis(&self.worker.store, asked).await;
        let mut told_by_redis = self.worker.clock_and_hints().await;
        let after = self.worker.now;
        let half = (after - before) / 2;
        let now = before + half;
        let margin = half + self.blur + ROUNDING;
        if !self.are_clear(calls, back(now, margin), now + margin) {
            return Ok(Compared::Unclear);
        }
        self.blur = self.blur.max(half);
        let mut equal = Vec::new();
        for ((pair, call), by_redis) in self.pairs.iter_mut().zip(calls).zip(by_redis) {
            let told = told_by_redis.remove(pair.key.as_str()).unwrap_or_default();
            pair.compare(call, now, margin, &by_redis, &told)?;
            equal.push((by_redis, told));
        }
        Ok(Compared::Equal(equal))
    }

    /// Whether each call has the same answer and effect at both times.
    fn are_clear(&self, calls: &[Call], early: Moment, late: Moment) -> bool {
        let mut pairs = self.pairs.iter().zip(calls);
        pairs.all(|(pair, call)| pair.is_clear(call, early, late))
    }
}

impl Pair {
    /// Makes a call under the rules, and compares what both say and tell.
    fn compare(
        &mut self,
        call: &Call,
        now: Moment,
        margin: Duration,
        by_redis: &Answer,
        told_by_redis: &Told,
    ) -> Result<(), String> {
        let (by_rules, told_by_rules) = call.by_rules(&mut self.slot, &self.key, now);
        let mut differences = Vec::new();
        let said = self.as_redis_may_say(call, &by_redis.said, by_rules.said.clone());
        if by_redis.said != said {
            differences.push("the answers differ");
        }
        let times = by_redis.times.iter().zip(&by_rules.times);
        if by_redis.times.len() != by_rules.times.len()
            || times
                .clone()
                .any(|(redis, rules)| redis.abs_diff(*rules) > margin)
        {
            differences.push("the times differ");
        }
        if *told_by_redis != told_by_rules {
            differences.push("the hints differ");
        }
        differences.extend(self.check_tokens(call, by_redis));
        self.look_for_waiters();
        if differences.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{call:?}\n{}\n  redis: {by_redis:?}, {told_by_redis:?}\
             \n  rules: {by_rules:?}, {told_by_rules:?}\n  margin: {margin:?}",
            differences.join(", ")
        ))
    }

    /// Whether a call has the same answer and effect at both times.
    fn is_clear(&self, call: &Call, early: Moment, late: Moment) -> bool {
        let at = |now| {
            let mut slot = self.slot.clone();
            let (answer, told) = call.by_rules(&mut slot, &self.key, now);
            let (seen, _) = Call::Inspect.by_rules(&mut slot, &self.key, now);
            (answer.said, told, seen.said)
        };
        at(early) == at(late)
    }

    /// The answer of the rules, as Redis may give it: a renewal of an exclusive lease without
    /// tokens does not look at the queue. It may say that others wait if somebody has waited
    /// since the grant, or if the lease is shared by now; and it must if they do.
    fn as_redis_may_say(&self, call: &Call, by_redis: &Said, by_rules: Said) -> Said {
        let Call::Renew(Renew { owner, .. }) = call else {
            return by_rules;
        };
        if !is_without_queue(call) || !matches!(by_rules, Said::Renewed { .. }) {
            return by_rules;
        }
        let holders = self.slot.inspect(0, Moment(0)).holders;
        let is_shared = holders.iter().any(|holder| holder.mode == Mode::Shared);
        if (is_shared || self.marked == Some(*owner))
            && matches!(by_redis, Said::Renewed { others_wait, .. } if *others_wait)
        {
            return by_redis.clone();
        }
        by_rules
    }

    /// Notes whether somebody is queued behind an exclusive holder.
    fn look_for_waiters(&mut self) {
        let seen = self.slot.inspect(0, Moment(0));
        let holder = seen.holders.first().map(|holder| holder.owner);
        if !seen.queue.is_empty() {
            self.marked = holder;
        }
        self.marked = self.marked.filter(|marked| holder == Some(*marked));
    }

    /// Checks that tokens rise, and that there are as many as may be.
    fn check_tokens(&mut self, call: &Call, by_redis: &Answer) -> Option<&'static str> {
        let tokens = by_redis.tokens?;
        let (asked, floor) = match call {
            Call::Acquire(request) => (request.block, self.last_token + 1),
            Call::Renew(request) => (request.refill, self.last_token + 1),
            Call::Raise(above) => (1, self.last_token + above),
            // Keys share counters.
            Call::Inspect => (1, self.last_token),
            Call::Release(_) | Call::Force(_) => return Some("tokens that nobody has asked for"),
        };
        let first = tokens.first()?;
        self.last_token = tokens.last()?;
        if first < floor {
            return Some("the tokens do not rise");
        }
        (tokens.left() > asked.max(1)).then_some("more tokens than asked for")
    }
}

/// Whether Redis renews the lease without a look at the queue.
fn is_without_queue(call: &Call) -> bool {
    matches!(call, Call::Renew(request) if request.refill == 0 && request.mode == Mode::Exclusive)
}

fn back(moment: Moment, by: Duration) -> Moment {
    Moment(moment.0 - by.as_micros() as u64)
}
