//! A private certificate authority, made with `openssl`, gone with the test.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

pub struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// Makes an authority and two certificates that it has signed: `server` for `localhost` and 127.0.0.1, and `client`.
    pub fn new() -> Self {
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let folder = format!("tdl-authority-{}-{random:x}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let authority = Self { folder };
        make(&authority.folder, "ca", &[]);
        let of_server = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        for (name, subject) in [
            ("server", of_server),
            ("client", "subjectAltName=DNS:client"),
        ] {
            let not_an_authority = "basicConstraints=critical,CA:FALSE";
            let signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", subject];
            let signed = [&signed[..], &["-addext", not_an_authority]].concat();
            make(&authority.folder, name, &signed);
        }
        authority
    }

    /// The path of a file: `ca.pem`, `server.pem`, `server.key`, `client.pem` or `client.key`.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    pub fn pem(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.join(name)).unwrap()
    }

    /// The arguments of a server that listens for TLS on a port as well.
    pub fn arguments(&self, port: u16, auth_clients: &str) -> Vec<String> {
        let arguments = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", self.path("server.pem")),
            ("--tls-key-file", self.path("server.key")),
            ("--tls-ca-cert-file", self.path("ca.pem")),
            ("--tls-auth-clients", auth_clients.to_owned()),
        ];
        let each = arguments.into_iter();
        each.flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Makes a key and a certificate, `name.key` and `name.pem`.
fn make(folder: &Path, name: &str, more: &[&str]) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-subj", &format!("/CN=tdl-{name}")])
        .args(["-keyout", &format!("{name}.key")])
        .args(["-out", &format!("{name}.pem")])
        .args(more)
        .current_dir(folder)
        .output();
    let made = made.expect("`openssl` is there: install it");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
}
