//! The identities of both ends: reads the certificates and the key, and makes `rustls`'s types of them.
//!
//! Called once, at the start: later, the sandbox lets the tunnel read no files. Each error names the file that it is about. Only TLS 1.3 is spoken, both
//! ends show certificates, and no session is resumed, so each connection is judged by certificates as they are then.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, Error, RootCertStore, ServerConfig,
    WantsVerifier,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

/// The files of one end, in PEM.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The authorities whose certificates the other end may show.
    pub(crate) ca: PathBuf,
    /// This end's certificate, and those between it and its authority.
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is no PEM: {error}", path.display())]
    Pem { path: PathBuf, error: pem::Error },
    #[error("{} holds no certificate: it needs a part that starts with -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} holds no private key: it needs a part that starts with -----BEGIN PRIVATE KEY-----, without a passphrase", .0.display())]
    NoKey(PathBuf),
    #[error("a certificate in {} is of no use as an authority: {error}", path.display())]
    Authority { path: PathBuf, error: Error },
    #[error("the key in {} does not belong to the first certificate in {}", key.display(), cert.display())]
    OtherKey { key: PathBuf, cert: PathBuf },
    #[error("the key in {} cannot be used: {error}; RSA, ECDSA and Ed25519 can", path.display())]
    Key { path: PathBuf, error: Error },
    #[error("the certificate in {} has expired: have a new one issued", .0.display())]
    Expired(PathBuf),
    #[error("the certificate in {} is not valid yet: is this machine's clock right?", .0.display())]
    NotYet(PathBuf),
    #[error("the certificate in {} is of no use: {error}", path.display())]
    Certificate { path: PathBuf, error: Error },
    #[error("cannot check certificates with {}: {reason}", path.display())]
    Verifier { path: PathBuf, reason: String },
}

/// The contents of the files.
struct Contents {
    authorities: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Files {
    /// How the host's end speaks.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, IdentityError> {
        let Contents {
            authorities,
            chain,
            key,
        } = self.read()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider())
            .build()
            .map_err(|error| self.no_verifier(&error))?;
        let builder = self.spoken(ServerConfig::builder_with_provider(provider()))?;
        let config = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key);
        let mut config = config.map_err(|error| self.not_a_pair(error))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// How the guest's end speaks.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        let Contents {
            authorities,
            chain,
            key,
        } = self.read()?;
        let builder = self.spoken(ClientConfig::builder_with_provider(provider()))?;
        let config = builder
            .with_root_certificates(authorities)
            .with_client_auth_cert(chain, key);
        let mut config = config.map_err(|error| self.not_a_pair(error))?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn spoken<S: rustls::ConfigSide>(
        &self,
        builder: ConfigBuilder<S, rustls::WantsVersions>,
    ) -> Result<ConfigBuilder<S, WantsVerifier>, IdentityError> {
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
        builder.map_err(|error| self.no_verifier(&error))
    }

    fn read(&self) -> Result<Contents, IdentityError> {
        let mut authorities = RootCertStore::empty();
        for authority in certificates(&self.ca)? {
            let added = authorities.add(authority);
            added.map_err(|error| IdentityError::Authority {
                path: self.ca.clone(),
                error,
            })?;
        }
        let authorities = Arc::new(authorities);
        let chain = certificates(&self.cert)?;
        self.check_dates(&authorities, &chain)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => IdentityError::NoKey(self.key.clone()),
            error => IdentityError::Pem {
                path: self.key.clone(),
                error,
            },
        })?;
        Ok(Contents {
            authorities,
            chain,
            key,
        })
    }

    /// Looks whether this end's own certificate is valid now, rather than have the other end find out.
    fn check_dates(
        &self,
        authorities: &Arc<RootCertStore>,
        chain: &[CertificateDer<'static>],
    ) -> Result<(), IdentityError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(authorities.clone(), provider());
        let verifier = verifier.build();
        let verifier = verifier.map_err(|error| self.no_verifier(&error))?;
        let [certificate, between @ ..] = chain else {
            return Err(IdentityError::NoCertificate(self.cert.clone()));
        };
        let nobody = ServerName::try_from("invalid").map_err(|error| self.no_verifier(&error))?;
        match verifier.verify_server_cert(certificate, between, &nobody, &[], UnixTime::now()) {
            Err(Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => Err(IdentityError::Expired(self.cert.clone())),
            Err(Error::InvalidCertificate(
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
            )) => Err(IdentityError::NotYet(self.cert.clone())),
            Err(error @ Error::InvalidCertificate(CertificateError::BadEncoding)) => {
                Err(IdentityError::Certificate {
                    path: self.cert.clone(),
                    error,
                })
            }
            // Authority, purpose and name are for the other end to judge: its authorities may be others.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn no_verifier(&self, error: &dyn fmt::Display) -> IdentityError {
        IdentityError::Verifier {
            path: self.ca.clone(),
            reason: error.to_string(),
        }
    }

    fn not_a_pair(&self, error: Error) -> IdentityError {
        match error {
            Error::InconsistentKeys(_) => IdentityError::OtherKey {
                key: self.key.clone(),
                cert: self.cert.clone(),
            },
            Error::InvalidCertificate(_) => IdentityError::Certificate {
                path: self.cert.clone(),
                error,
            },
            error => IdentityError::Key {
                path: self.key.clone(),
                error,
            },
        }
    }

    /// Says why a connection failed, in terms of these files.
    pub(crate) fn explain(&self, error: &Error) -> String {
        let (ca, cert) = (self.ca.display(), self.cert.display());
        match error {
            Error::NoCertificatesPresented => "it shows no certificate".to_owned(),
            Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!("its certificate is of no authority in {ca}")
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "its certificate has expired: it needs a new one".to_owned()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "its certificate is not valid yet: are both machines' clocks right?".to_owned()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    format!(
                        "its certificate is for another machine: {why}; --tls-name says which name it has"
                    )
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    "its certificate is not for this end of a connection: see its extended key usage"
                        .to_owned()
                }
                why => format!("its certificate is of no use: {why}"),
            },
            Error::AlertReceived(alert) => match alert {
                AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                    format!("it does not take the certificate in {cert}, whose authority it does not know")
                }
                AlertDescription::CertificateExpired => {
                    format!("it says that the certificate in {cert} has expired")
                }
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRevoked
                | AlertDescription::AccessDenied => {
                    format!("it does not take the certificate in {cert}: {alert:?}")
                }
                alert => format!("it ends the connection: {alert:?}"),
            },
            error => format!("it does not speak TLS 1.3 as it should: {error}"),
        }
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of an authority in {}",
            self.cert.display(),
            self.ca.display()
        )
    }
}

/// The cryptography, always named and never taken from the process's default.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    std::fs::read(path).map_err(|error| IdentityError::Read {
        path: path.to_owned(),
        error,
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| IdentityError::Pem {
        path: path.to_owned(),
        error,
    })?;
    match found.is_empty() {
        true => Err(IdentityError::NoCertificate(path.to_owned())),
        false => Ok(found),
    }
}
