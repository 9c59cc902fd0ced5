//! Storage of certificates from an authority: chain and key in one file, so that they change together, beside the account.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustls::{
    pki_types::{CertificateDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::{extensions::GeneralName, prelude::FromDer};

use super::error::ValidityError;
use crate::{
    certificate::{self, CertificateError},
    config::Acme,
};

/// File with the certificate of `config`, which need not exist; `None` if no certificate is configured.
pub(crate) fn file(config: &Acme) -> Option<PathBuf> {
    let name = config.names.0.first()?;
    Some(Path::new(&config.folder).join(format!("{}.pem", name.to_ascii_lowercase())))
}

/// The certificate and its key; `None` when it is not there yet.
pub(crate) fn load(config: &Acme) -> Option<Result<CertifiedKey, CertificateError>> {
    let file = file(config).filter(|file| file.exists())?;
    Some(certificate::read(&file, &file))
}

/// For whom and how long a certificate is good.
pub(super) struct Validity {
    pub(super) from: SystemTime,
    pub(super) until: SystemTime,
    pub(super) names: Vec<String>,
}

impl Validity {
    /// Returns whether the certificate is for all of these names.
    pub(super) fn is_for(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.iter().any(|own| own.eq_ignore_ascii_case(name)))
    }
}

/// Of the certificate that is kept.
pub(super) fn validity(config: &Acme) -> Result<Validity, ValidityError> {
    let file = file(config).ok_or(ValidityError::NoName)?;
    // Chain and key have to belong together, too.
    certificate::read(&file, &file)?;
    validity_of(&fs::read(&file).map_err(ValidityError::Unreadable)?)
}

/// Of the first certificate in a PEM text.
pub(super) fn validity_of(pem: &[u8]) -> Result<Validity, ValidityError> {
    let der = CertificateDer::from_pem_slice(pem).map_err(ValidityError::Pem)?;
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&der).map_err(ValidityError::Malformed)?;
    let time = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0));
    let names = parsed.subject_alternative_name().map_err(ValidityError::Names)?;
    let names = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Ok(Validity {
        from: time(parsed.validity().not_before.timestamp()),
        until: time(parsed.validity().not_after.timestamp()),
        names: names.collect(),
    })
}

/// Writes a file for its owner alone, as a whole or not at all.
pub(super) fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    crate::folder::private(folder)?;
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = PathBuf::from(next);
    // What a process that was ended left behind may have another mode.
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
    file.write_all(data)?;
    file.sync_all()?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Many;

    #[test]
    fn what_was_written_is_read_and_is_its_owner_s_alone() {
        let folder = std::env::temp_dir().join(format!("tiderace-acme-store-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let config = Acme {
            folder: folder.join("acme").to_string_lossy().into_owned(),
            names: Many(vec!["A.example".to_owned(), "b.example".to_owned()]),
            ..Acme::default()
        };
        assert!(load(&config).is_none() && validity(&config).is_err());
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned(), "b.example".to_owned()]).unwrap();
        let text = format!("{}{}", made.signing_key.serialize_pem(), made.cert.pem());
        let path = file(&config).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path.with_extension("pem.new"), "left behind").unwrap();
        write(&path, text.as_bytes()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(load(&config).unwrap().is_ok());
        let validity = validity(&config).unwrap();
        assert!(validity.is_for(&config.names.0) && !validity.is_for(&["c.example".to_owned()]));
        assert!(validity.from < SystemTime::now() && validity.until > SystemTime::now());
        // The key of another does not belong to it.
        let other = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        write(&path, format!("{}{}", other.signing_key.serialize_pem(), made.cert.pem()).as_bytes()).unwrap();
        assert!(load(&config).unwrap().is_err() && super::validity(&config).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
