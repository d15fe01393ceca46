//! An authority, and certificates by it, as files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use tempfile::TempDir;

/// The name of the host's end in its certificate.
pub(crate) const HOST: &str = "host.example";

/// The files of one end.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) crl: Option<PathBuf>,
    /// Of the certificate.
    pub(crate) serial: u64,
}

/// The validity of a certificate or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Valid {
    Now,
    Once,
    OneDay,
}

impl Valid {
    fn years(self) -> [i32; 2] {
        match self {
            Valid::Now => [2000, 2999],
            Valid::Once => [2000, 2001],
            Valid::OneDay => [2998, 2999],
        }
    }
}

/// An authority, whose files go with it.
pub(crate) struct Fleet {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        static FLEETS: AtomicU64 = AtomicU64::new(1);
        let number = FLEETS.fetch_add(1, Ordering::Relaxed);
        Fleet::named(&format!("the authority of fleet {number}"))
    }

    /// An authority of this name with a key of its own.
    pub(crate) fn named(name: &str) -> Fleet {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        Fleet { folder, authority }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The certificate of the host's end.
    pub(crate) fn host(&self) -> Identity {
        self.issue(HOST, ExtendedKeyUsagePurpose::ServerAuth, Valid::Now)
    }

    /// The certificate of a guest's end.
    pub(crate) fn guest(&self) -> Identity {
        self.issue("guest.example", ExtendedKeyUsagePurpose::ClientAuth, Valid::Now)
    }

    pub(crate) fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose, valid: Valid) -> Identity {
        static SERIALS: AtomicU64 = AtomicU64::new(1);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        [params.not_before, params.not_after] = valid.years().map(|year| date_time_ymd(year, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let identity = Identity {
            ca: self.path("ca.pem"),
            cert: self.path(&format!("{name}-{valid:?}.pem")),
            key: self.path(&format!("{name}-{valid:?}.key")),
            crl: None,
            serial,
        };
        std::fs::write(&identity.cert, certificate.pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }

    /// Writes the list of revoked certificates, in the place of the one before.
    pub(crate) fn revoke(&self, revoked: &[&Identity], valid: Valid) -> PathBuf {
        let [this_update, next_update] = valid.years().map(|year| date_time_ymd(year, 1, 1));
        let entry = |identity: &&Identity| RevokedCertParams {
            serial_number: SerialNumber::from(identity.serial),
            revocation_time: this_update,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update,
            next_update,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.authority).unwrap();
        let path = self.path("crl.pem");
        replace(&path, &list.pem().unwrap());
        path
    }
}

/// Puts a new file in the place of one, as those do who renew certificates.
pub(crate) fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
