//! The certificates of TLS connections.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::{Error, store::redis::explain::invalid};

/// The certificates that the user has set. Without any, the root certificates of the system count,
/// and the client has none.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// The certificates of the authorities that sign for servers, in PEM.
    pub(crate) roots: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCertificate>,
}

/// A certificate for the server, and the key to it, both in PEM.
#[derive(Clone)]
#[cfg_attr(not(feature = "tls-rustls"), allow(dead_code))] // refused by `check_use`
pub(crate) struct ClientCertificate {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// Whether a connection uses TLS.
fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Whether the client library uses TLS for a URL. False for the name of a service, which is not a
/// URL.
fn is_url_of_tls(url: &str) -> bool {
    url.into_connection_info().is_ok_and(|info| is_tls(&info))
}

impl Certificates {
    fn is_empty(&self) -> bool {
        self.roots.is_none() && self.client.is_none()
    }

    /// Refuses certificates that would have no effect.
    pub(super) fn check_use<'a>(
        &self,
        urls: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        if cfg!(not(feature = "tls-rustls")) {
            return Err(invalid("certificates need the feature `tls-rustls`"));
        }
        if !urls.into_iter().any(|url| is_url_of_tls(url)) {
            return Err(invalid(
                "certificates were set, but no URL begins with `rediss://` or `valkeys://`, so no connection would use them",
            ));
        }
        Ok(())
    }

    #[cfg(not(feature = "tls-rustls"))]
    pub(super) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        Ok(info)
    }

    /// Adds the certificates to the settings of a TLS connection.
    #[cfg(feature = "tls-rustls")]
    pub(super) fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        use redis::{Client, ClientTlsConfig, TlsCertificates};

        if self.is_empty() || !is_tls(&info) {
            return Ok(info);
        }
        pem::check(self)?;
        let certificates = TlsCertificates {
            client_tls: self.client.as_ref().map(|client| ClientTlsConfig {
                client_cert: client.chain.clone(),
                client_key: client.key.clone(),
            }),
            root_cert: self.roots.clone(),
        };
        let client = Client::build_with_tls(info, certificates).map_err(|error| {
            pem::refused("the client library cannot use the certificates", error)
        })?;
        Ok(client.get_connection_info().clone())
    }
}

#[cfg(feature = "tls-rustls")]
pub(super) use self::pem::ensure_crypto_provider;

#[cfg(feature = "tls-rustls")]
mod pem {
    use rustls::{
        ClientConfig, RootCertStore,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    };

    use super::{Certificates, invalid};
    use crate::{Error, ErrorKind};

    type Chain = Vec<CertificateDer<'static>>;

    pub(super) fn refused(
        message: &str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::with_source(ErrorKind::InvalidConfig, message, error)
    }

    /// Refuses what is not PEM, and a key that is not the key of its certificate. The client
    /// library would only notice when it connects, or would trust no server at all.
    pub(super) fn check(certificates: &Certificates) -> Result<(), Error> {
        ensure_crypto_provider();
        let mut roots = RootCertStore::empty();
        if let Some(pem) = &certificates.roots {
            for root in chain(pem, "the root certificates")? {
                roots
                    .add(root)
                    .map_err(|error| refused("a root certificate is malformed", error))?;
            }
        }
        let Some(client) = &certificates.client else {
            return Ok(());
        };
        let key = PrivateKeyDer::from_pem_slice(&client.key)
            .map_err(|error| refused("the key of the client certificate is not PEM", error))?;
        ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain(&client.chain, "the client certificate")?, key)
            .map_err(|error| {
                refused(
                    "the client certificate and its key do not fit together",
                    error,
                )
            })?;
        Ok(())
    }

    fn chain(pem: &[u8], name: &str) -> Result<Chain, Error> {
        let chain: Result<Chain, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain = chain.map_err(|error| refused(&format!("{name}: not PEM"), error))?;
        if chain.is_empty() {
            return Err(invalid(format!("{name}: no certificate in the PEM")));
        }
        Ok(chain)
    }

    /// Installs the default provider of cryptography for rustls, unless the application has
    /// installed one. The client library takes the provider from the process and from nowhere
    /// else.
    pub(crate) fn ensure_crypto_provider() {
        if CryptoProvider::get_default().is_none() {
            // Fails only if another thread has installed a provider meanwhile, which is as good.
            let _ = ring::default_provider().install_default();
        }
    }
}
