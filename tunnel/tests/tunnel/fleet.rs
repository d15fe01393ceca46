//! An authority, and certificates by it, as files.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

/// The name of the host's end in its certificate.
pub(crate) const HOST: &str = "host.example";

/// The three files of one end.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Valid {
    Now,
    Once,
    OneDay,
}

/// An authority, whose files go with it.
pub(crate) struct Fleet {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "the authority of a fleet");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
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
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2000, 1, 1), date_time_ymd(2999, 1, 1)),
            Valid::Once => (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1)),
            Valid::OneDay => (date_time_ymd(2998, 1, 1), date_time_ymd(2999, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let identity = Identity {
            ca: self.path("ca.pem"),
            cert: self.path(&format!("{name}-{valid:?}.pem")),
            key: self.path(&format!("{name}-{valid:?}.key")),
        };
        std::fs::write(&identity.cert, certificate.pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }
}
