//! The identities of both ends: reads the certificates and the key, and makes `rustls`'s types of them.
//!
//! Called at the start and for each reload. Each error names the file that it is about. Only TLS 1.3 is spoken, both ends show certificates, and no session
//! is resumed, so each connection is judged by certificates as they are then. After a reload a [`Judge`] judges the connections that stand, too.
//!
//! The files have two parts: what this end shows, and what it judges others by. A reload whose first part is of no use takes the second all the same: an end
//! that has to be renewed itself still ends the connections of a stolen guest.
//!
//! A list of revoked certificates, if there is one, has to speak of every certificate that is shown, and must not have expired: a list that says nothing
//! lets nobody in.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, Error, RootCertStore, ServerConfig,
    WantsVerifier,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};

/// The files of one end, in PEM.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The authorities whose certificates the other end may show.
    pub(crate) ca: PathBuf,
    /// This end's certificate, and those between it and its authority.
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// The certificates that the authorities have revoked.
    pub(crate) crl: Option<PathBuf>,
}

/// The certificates that an end has shown.
type Chain<'a> = &'a [CertificateDer<'static>];

/// What this end shows: a certificate, those between it and its authority, and its key.
pub(crate) type Shown = Arc<CertifiedKey>;

/// The server's side of TLS, and who may come.
pub(crate) struct HostIdentity {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) judge: Judge,
    shown: Shown,
}

/// The client's side of TLS, and whom it takes for the host's end.
pub(crate) struct GuestIdentity {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) judge: Judge,
    shown: Shown,
}

/// What files that have been read anew make of an end. It shows the certificate of before if there is a reason to.
pub(crate) type Renewed<T> = (T, Option<IdentityError>);

/// Judges the certificates that the other end has shown.
pub(crate) enum Judge {
    OfGuests(Arc<dyn ClientCertVerifier>),
    OfHost(Arc<WebPkiServerVerifier>, ServerName<'static>),
}

impl Judge {
    /// Whether the other end would be let in if it showed this chain at this time.
    pub(crate) fn judge(&self, chain: &[CertificateDer<'_>], at: UnixTime) -> Result<(), Error> {
        let [certificate, between @ ..] = chain else {
            return Err(Error::NoCertificatesPresented);
        };
        match self {
            Judge::OfGuests(verifier) => verifier.verify_client_cert(certificate, between, at).map(drop),
            Judge::OfHost(verifier, name) => verifier
                .verify_server_cert(certificate, between, name, &[], at)
                .map(drop),
        }
    }

    /// Judges connections by what they have shown, and when. Returns those that would not be let in.
    ///
    /// Many show the same few chains. The first and the last time of a chain tell of those in between if the verdicts are the same: the validity of a
    /// certificate or a list has no gaps.
    pub(crate) fn judge_all<'a, Id>(
        &self,
        shown: impl Iterator<Item = (Id, Chain<'a>, UnixTime)> + Clone,
    ) -> Vec<(Id, Error)> {
        let mut spans: HashMap<Chain<'a>, (UnixTime, UnixTime)> = HashMap::new();
        for (_, chain, at) in shown.clone() {
            let (first, last) = spans.entry(chain).or_insert((at, at));
            *first = at.min(*first);
            *last = at.max(*last);
        }
        let verdict = |(chain, (first, last)): (Chain<'a>, (UnixTime, UnixTime))| {
            let verdict = self.judge(chain, first);
            let is_same = first == last || verdict == self.judge(chain, last);
            is_same.then_some((chain, verdict))
        };
        let verdicts: HashMap<_, _> = spans.into_iter().filter_map(verdict).collect();
        let failed = |(id, chain, at): (Id, Chain<'a>, UnixTime)| {
            let verdict = match verdicts.get(chain) {
                Some(verdict) => verdict.clone(),
                None => self.judge(chain, at),
            };
            Some((id, verdict.err()?))
        };
        shown.filter_map(failed).collect()
    }

    /// Why the lists let none of these connections in, when they came or now; `None` if one of them is let in, or refused for another reason.
    pub(crate) fn refusal_by_lists<'a>(
        &self,
        shown: impl Iterator<Item = (Chain<'a>, UnixTime)>,
        now: UnixTime,
    ) -> Option<Error> {
        let mut why = None;
        for (chain, at) in shown {
            // A list that revokes one of them is taken, even if it has expired since that one came.
            let error = match self.judge(chain, at) {
                Ok(()) => self.judge(chain, now).err()?,
                Err(error) => error,
            };
            why = is_of_lists(&error).then_some(error);
            why.as_ref()?;
        }
        why
    }
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
    #[error("the certificate in {} is revoked by the list in {}: have a new one issued", cert.display(), crl.display())]
    Revoked { cert: PathBuf, crl: PathBuf },
    #[error("{} holds no list of revoked certificates: it needs a part that starts with -----BEGIN X509 CRL-----", .0.display())]
    NoList(PathBuf),
    #[error("a list in {} is of no use: {reason}", path.display())]
    List { path: PathBuf, reason: String },
    #[error("the list of revoked certificates in {} has expired: have a new one issued", .0.display())]
    ExpiredList(PathBuf),
    #[error("the certificate in {} is of no use: {error}", path.display())]
    Certificate { path: PathBuf, error: Error },
    #[error("cannot check certificates with {}: {reason}", path.display())]
    Verifier { path: PathBuf, reason: String },
}

impl IdentityError {
    /// Whether the lists are of no use, rather than what this end shows.
    fn is_of_lists(&self) -> bool {
        matches!(self, IdentityError::List { .. } | IdentityError::ExpiredList(_))
    }
}

/// Whether lists refuse a certificate without having revoked it.
fn is_of_lists(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertRevocationList(_)
            | Error::InvalidCertificate(
                CertificateError::UnknownRevocationStatus
                    | CertificateError::ExpiredRevocationList
                    | CertificateError::ExpiredRevocationListContext { .. }
            )
    )
}

/// What other ends are judged by.
struct Trusted {
    of_clients: Arc<dyn ClientCertVerifier>,
    of_servers: Arc<WebPkiServerVerifier>,
}

impl Trusted {
    fn judge(&self, end: Other) -> Judge {
        match end {
            Other::Guests => Judge::OfGuests(self.of_clients.clone()),
            Other::Host(name) => Judge::OfHost(self.of_servers.clone(), name),
        }
    }
}

/// Whose certificates are judged.
enum Other {
    Guests,
    Host(ServerName<'static>),
}

impl Other {
    /// The host's end, whatever its name: its name is for guests to judge.
    fn any_host() -> Other {
        Other::Host(ServerName::from(Ipv4Addr::UNSPECIFIED))
    }
}

impl Files {
    /// The same files, wherever the program is later.
    pub(crate) fn absolute(self) -> Files {
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        Files {
            ca: absolute(self.ca),
            cert: absolute(self.cert),
            key: absolute(self.key),
            crl: self.crl.map(absolute),
        }
    }

    /// How the host's end speaks.
    pub(crate) fn host(&self) -> Result<HostIdentity, IdentityError> {
        let trusted = self.trusted()?;
        let shown = self.shown()?;
        self.check_own(&trusted.judge(Other::any_host()), &shown)?;
        self.host_that_shows(shown, &trusted)
    }

    /// The same end by what the files hold now.
    pub(crate) fn host_again(&self, before: &HostIdentity) -> Result<Renewed<HostIdentity>, IdentityError> {
        let trusted = self.trusted()?;
        let (shown, kept) = self.shown_again(&before.shown, &trusted.judge(Other::any_host()))?;
        Ok((self.host_that_shows(shown, &trusted)?, kept))
    }

    fn host_that_shows(&self, shown: Shown, trusted: &Trusted) -> Result<HostIdentity, IdentityError> {
        let builder = self.spoken(ServerConfig::builder_with_provider(provider()))?;
        let mut config = builder
            .with_client_cert_verifier(trusted.of_clients.clone())
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown.clone())));
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(HostIdentity {
            config: Arc::new(config),
            judge: trusted.judge(Other::Guests),
            shown,
        })
    }

    /// How the end of a guest speaks that expects this name of the host's.
    pub(crate) fn guest(&self, name: &ServerName<'static>) -> Result<GuestIdentity, IdentityError> {
        let trusted = self.trusted()?;
        let shown = self.shown()?;
        self.check_own(&trusted.judge(Other::Guests), &shown)?;
        self.guest_that_shows(shown, &trusted, name)
    }

    /// The same end by what the files hold now.
    pub(crate) fn guest_again(
        &self,
        before: &GuestIdentity,
        name: &ServerName<'static>,
    ) -> Result<Renewed<GuestIdentity>, IdentityError> {
        let trusted = self.trusted()?;
        let (shown, kept) = self.shown_again(&before.shown, &trusted.judge(Other::Guests))?;
        Ok((self.guest_that_shows(shown, &trusted, name)?, kept))
    }

    fn guest_that_shows(
        &self,
        shown: Shown,
        trusted: &Trusted,
        name: &ServerName<'static>,
    ) -> Result<GuestIdentity, IdentityError> {
        let builder = self.spoken(ClientConfig::builder_with_provider(provider()))?;
        let mut config = builder
            .with_webpki_verifier(trusted.of_servers.clone())
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown.clone())));
        config.resumption = Resumption::disabled();
        Ok(GuestIdentity {
            config: Arc::new(config),
            judge: trusted.judge(Other::Host(name.clone())),
            shown,
        })
    }

    fn spoken<S: rustls::ConfigSide>(
        &self,
        builder: ConfigBuilder<S, rustls::WantsVersions>,
    ) -> Result<ConfigBuilder<S, WantsVerifier>, IdentityError> {
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
        builder.map_err(|error| self.no_verifier(&error))
    }

    /// Reads the authorities, and the lists.
    fn trusted(&self) -> Result<Trusted, IdentityError> {
        let mut authorities = RootCertStore::empty();
        for authority in certificates(&self.ca)? {
            let added = authorities.add(authority);
            added.map_err(|error| IdentityError::Authority {
                path: self.ca.clone(),
                error,
            })?;
        }
        let authorities = Arc::new(authorities);
        let revoked = match &self.crl {
            Some(path) => lists(path)?,
            None => Vec::new(),
        };
        let of_clients = WebPkiClientVerifier::builder_with_provider(authorities.clone(), provider())
            .with_crls(revoked.clone())
            .enforce_revocation_expiration()
            .build();
        let of_servers = WebPkiServerVerifier::builder_with_provider(authorities, provider())
            .with_crls(revoked)
            .enforce_revocation_expiration()
            .build();
        Ok(Trusted {
            of_clients: of_clients.map_err(|error| self.not_built(error))?,
            of_servers: of_servers.map_err(|error| self.not_built(error))?,
        })
    }

    /// Reads what this end shows.
    fn shown(&self) -> Result<Shown, IdentityError> {
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| match error {
            pem::Error::NoItemsFound => IdentityError::NoKey(self.key.clone()),
            error => IdentityError::Pem {
                path: self.key.clone(),
                error,
            },
        })?;
        let shown = CertifiedKey::from_der(chain, key, &provider());
        shown.map(Arc::new).map_err(|error| self.not_a_pair(error))
    }

    /// Reads what this end shows, or keeps what it has shown so far, and says why. This fails only if the lists are of no use.
    fn shown_again(
        &self,
        before: &Shown,
        judge: &Judge,
    ) -> Result<(Shown, Option<IdentityError>), IdentityError> {
        let kept = match self.shown() {
            Ok(shown) => match self.check_own(judge, &shown) {
                Ok(()) => return Ok((shown, None)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if kept.is_of_lists() {
            return Err(kept);
        }
        match self.check_own(judge, before) {
            Err(error) if error.is_of_lists() => Err(error),
            _ => Ok((before.clone(), Some(kept))),
        }
    }

    /// Looks whether this end's own certificate is of use now, rather than have the other end find out.
    fn check_own(&self, judge: &Judge, shown: &Shown) -> Result<(), IdentityError> {
        let why = match (judge.judge(&shown.cert, UnixTime::now()), &self.crl) {
            (Err(Error::InvalidCertificate(why)), _) => why,
            (Err(Error::InvalidCertRevocationList(why)), Some(crl)) => {
                return Err(IdentityError::List {
                    path: crl.clone(),
                    reason: format!("{why:?}; is it by its authority, and the only one by that name?"),
                });
            }
            (Ok(()) | Err(_), _) => return Ok(()),
        };
        let cert = || self.cert.clone();
        match (why, &self.crl) {
            (CertificateError::Expired | CertificateError::ExpiredContext { .. }, _) => {
                Err(IdentityError::Expired(cert()))
            }
            (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => {
                Err(IdentityError::NotYet(cert()))
            }
            (why @ CertificateError::BadEncoding, _) => Err(IdentityError::Certificate {
                path: cert(),
                error: Error::InvalidCertificate(why),
            }),
            (CertificateError::Revoked, Some(crl)) => Err(IdentityError::Revoked {
                cert: cert(),
                crl: crl.clone(),
            }),
            (
                CertificateError::ExpiredRevocationList
                | CertificateError::ExpiredRevocationListContext { .. },
                Some(crl),
            ) => Err(IdentityError::ExpiredList(crl.clone())),
            // Authority, purpose and name are for the other end to judge: its authorities may be others.
            _ => Ok(()),
        }
    }

    fn not_built(&self, error: VerifierBuilderError) -> IdentityError {
        match (error, &self.crl) {
            (VerifierBuilderError::InvalidCrl(error), Some(path)) => IdentityError::List {
                path: path.clone(),
                reason: Error::from(error).to_string(),
            },
            (error, _) => self.no_verifier(&error),
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

    /// Says that new lists would refuse every connection that stands.
    pub(crate) fn lists_refuse_all(&self, error: &Error) -> IdentityError {
        IdentityError::List {
            path: self.crl.clone().unwrap_or_default(),
            reason: format!(
                "it would let none of the present connections in: {}",
                self.explain(error)
            ),
        }
    }

    fn lists(&self) -> impl fmt::Display + '_ {
        self.crl.as_deref().unwrap_or(Path::new("-")).display()
    }

    /// The folders that have to be readable for a reload: of the files as they are named, and of those that links lead to now. A file that takes the place
    /// of another is in the folder of that.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let named = [&self.ca, &self.cert, &self.key].into_iter().chain(&self.crl);
        let all = named.flat_map(|path| [std::path::absolute(path), path.canonicalize()]);
        let mut folders: Vec<PathBuf> = all
            .flatten()
            .filter_map(|path| path.parent().map(Path::to_owned))
            .collect();
        folders.sort();
        folders.dedup();
        folders
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
                CertificateError::Revoked => "its certificate is revoked".to_owned(),
                CertificateError::UnknownRevocationStatus => format!(
                    "{} has no list of its certificate's authority, so it may be revoked",
                    self.lists()
                ),
                CertificateError::ExpiredRevocationList
                | CertificateError::ExpiredRevocationListContext { .. } => format!(
                    "the list of revoked certificates in {} has expired: put a new one there, and reload",
                    self.lists()
                ),
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
                AlertDescription::CertificateRevoked => {
                    format!("it says that the certificate in {cert} is revoked")
                }
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::AccessDenied => {
                    format!("it does not take the certificate in {cert}: {alert:?}")
                }
                alert => format!("it ends the connection: {alert:?}"),
            },
            Error::InvalidCertRevocationList(why) => format!(
                "its certificate cannot be looked up in {}: {why:?}; is the list by its authority, and the only one by that name?",
                self.lists()
            ),
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

fn lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| IdentityError::Pem {
        path: path.to_owned(),
        error,
    })?;
    match found.is_empty() {
        true => Err(IdentityError::NoList(path.to_owned())),
        false => Ok(found),
    }
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
