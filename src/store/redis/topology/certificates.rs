//! The certificates of TLS connections to Redis.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::{
    Error,
    store::{certificates::Certificates, redis::explain::invalid},
};

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

        use crate::store::certificates::refused;

        if self.is_empty() || !is_tls(&info) {
            return Ok(info);
        }
        self.check()?;
        let certificates = TlsCertificates {
            client_tls: self.client.as_ref().map(|client| ClientTlsConfig {
                client_cert: client.chain.clone(),
                client_key: client.key.clone(),
            }),
            root_cert: self.roots.clone(),
        };
        let client = Client::build_with_tls(info, certificates)
            .map_err(|error| refused("the client library cannot use the certificates", error))?;
        Ok(client.get_connection_info().clone())
    }
}
