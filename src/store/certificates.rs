//! The certificates of TLS connections.

#[cfg(feature = "tls-rustls")]
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

#[cfg(feature = "tls-rustls")]
use crate::{Error, ErrorKind};

/// The certificates that the user has set. Without any, the root certificates of the system count,
/// and the client has none.
#[derive(Clone, Default)]
pub(super) struct Certificates {
    /// The certificates of the authorities that sign for servers, in PEM.
    pub(super) roots: Option<Vec<u8>>,
    pub(super) client: Option<ClientCertificate>,
}

/// A certificate for the server, and the key to it, both in PEM.
#[derive(Clone)]
#[cfg_attr(not(feature = "tls-rustls"), allow(dead_code))] // refused before their use
pub(super) struct ClientCertificate {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl Certificates {
    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_none() && self.client.is_none()
    }
}

#[cfg(feature = "tls-rustls")]
impl Certificates {
    /// Refuses what is not PEM, and a key that is not the key of its certificate. A client library
    /// may only notice when it connects, or would trust no server at all.
    #[cfg(feature = "redis")]
    pub(super) fn check(&self) -> Result<(), Error> {
        self.config(RootCertStore::empty()).map(drop)
    }

    /// The settings of connections. Without certificates of authorities, those of the system count.
    #[cfg(feature = "postgres")]
    pub(super) fn client_config(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        if self.roots.is_none() {
            // Without any, no server is trusted, and the handshake says so.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        self.config(roots)
    }

    fn config(&self, mut roots: RootCertStore) -> Result<ClientConfig, Error> {
        ensure_crypto_provider();
        if let Some(pem) = &self.roots {
            for root in chain(pem, "the root certificates")? {
                roots
                    .add(root)
                    .map_err(|error| refused("a root certificate is malformed", error))?;
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some(client) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_slice(&client.key)
            .map_err(|error| refused("the key of the client certificate is not PEM", error))?;
        let chain = chain(&client.chain, "the client certificate")?;
        config.with_client_auth_cert(chain, key).map_err(|error| {
            let message = "the client certificate and its key do not fit together";
            refused(message, error)
        })
    }
}

#[cfg(feature = "tls-rustls")]
pub(super) fn refused(
    message: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::with_source(ErrorKind::InvalidConfig, message, error)
}

#[cfg(feature = "tls-rustls")]
fn chain(pem: &[u8], name: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| refused(&format!("{name}: not PEM"), error))?;
    if chain.is_empty() {
        let message = format!("{name}: no certificate in the PEM");
        return Err(Error::new(ErrorKind::InvalidConfig, message));
    }
    Ok(chain)
}

/// Installs the default provider of cryptography for rustls, unless the application has installed
/// one. The client library of Redis takes the provider from the process and from nowhere else.
#[cfg(feature = "tls-rustls")]
pub(super) fn ensure_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has installed a provider meanwhile, which is as good.
        let _ = ring::default_provider().install_default();
    }
}
