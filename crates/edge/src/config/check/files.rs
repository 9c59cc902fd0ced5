//! Paths in a configuration: relative to its file, and faults of the files that they name.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::super::{
    Config,
    address::back_end,
    clients, examine, ip_proxy, machine, proxy,
    read::{
        ConfigCause, Fault,
        Step::{self, Key, Number},
    },
    signer, site,
};

impl Config {
    /// Makes paths in the file relative to its directory.
    pub(in crate::config) fn resolve(&mut self, directory: &Path) {
        let clients = self.client_certificates.as_mut().map(|clients| &mut clients.roots);
        let certificates = self.certificates.iter_mut().flat_map(|c| [&mut c.certificate, &mut c.key]);
        let signer = self.signer.iter_mut().flat_map(|s| [&mut s.roots, &mut s.certificate, &mut s.key]);
        let read_ids = self.load_balancer.connection_ids.iter_mut().map(|ids| &mut ids.key);
        let own = [
            &mut self.certificate,
            &mut self.key,
            &mut self.admin.socket,
            &mut self.keys.file,
            &mut self.load_balancer.key,
            &mut self.capture.folder,
            &mut self.acme.folder,
            &mut self.acme.roots,
        ];
        let paths = own.into_iter().chain(certificates).chain(clients).chain(signer).chain(read_ids);
        let files = self.routes.iter_mut().flat_map(|route| {
            let tokens = route.proxy.as_mut().map(|proxy| &mut proxy.tokens);
            let ip_tokens = route.ip_proxy.as_mut().map(|proxy| &mut proxy.tokens);
            let pages = route.error_pages.values_mut();
            let users = route.basic_auth.as_mut().map(|auth| &mut auth.users);
            [&mut route.files, &mut route.tls.roots]
                .into_iter()
                .chain(tokens)
                .chain(ip_tokens)
                .chain(users)
                .chain(pages)
        });
        for path in paths.chain(files).filter(|path| !path.is_empty()) {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
        if !["-", "off"].contains(&self.log.access.as_str()) {
            self.log.access = directory.join(&self.log.access).to_string_lossy().into_owned();
        }
    }

    /// Checks for back ends that are the gateway itself, as far as addresses show.
    fn check_loops(&self) -> Result<(), Fault> {
        for (number, route) in self.routes.iter().enumerate() {
            for to in &route.to.0 {
                let Ok((protocol, authority)) = back_end(to) else { continue };
                let port = authority.port_u16().unwrap_or(protocol.default_port());
                let Ok(ip) = authority.host().trim_start_matches('[').trim_end_matches(']').parse() else { continue };
                if examine::is_gateway(self, SocketAddr::new(ip, port)) {
                    let at = [Key("route"), Number(number), Key("to")];
                    return Err(Fault::new(&at, format!("`{to}` is the gateway itself"))
                        .hint("a request would go round until its time is over; name the port of the back end"));
                }
            }
        }
        Ok(())
    }

    /// Certificates and keys that belong together and can be read, directories that exist.
    pub(in crate::config) fn check_files(&self) -> Result<(), Fault> {
        let with_path = |path: &[Step], chain: &str, key: &str| {
            crate::certificate::read(Path::new(chain), Path::new(key)).map(drop).map_err(|error| {
                let mut path = path.to_vec();
                path.push(Key(if error.is_key() { "key" } else { "certificate" }));
                let hint = error.hint();
                Fault { hint, ..Fault::of(&path, error.to_string(), ConfigCause::Certificate(Arc::new(error))) }
            })
        };
        if !self.certificate.is_empty() && !self.key.is_empty() {
            with_path(&[], &self.certificate, &self.key)?;
        }
        signer::check_files(self)?;
        for (number, certificate) in self.certificates.iter().enumerate().filter(|(_, c)| !c.key.is_empty()) {
            let at = [Key("certificate-for"), Number(number)];
            with_path(&at, &certificate.certificate, &certificate.key)?;
        }
        if !self.acme.names.0.is_empty() {
            crate::trust::Trust::read(&self.acme.roots).map_err(|error| roots(&[Key("acme"), Key("roots")], error))?;
        }
        if !self.keys.file.is_empty() {
            crate::keys::read(Path::new(&self.keys.file)).map_err(|error| {
                let hint =
                    "`tiderace edge keys --file FILE` makes one; chmod 600, or 640 for a group of the gateway's own";
                let at = [Key("keys"), Key("file")];
                Fault::of(&at, error.to_string(), ConfigCause::Keys(Arc::new(error))).hint(hint)
            })?;
        }
        for (number, route) in self.routes.iter().enumerate() {
            crate::trust::Trust::read(&route.tls.roots)
                .map_err(|error| roots(&[Key("route"), Number(number), Key("tls")], error))?;
        }
        self.check_loops()?;
        proxy::check_files(&self.routes)?;
        ip_proxy::check_files(&self.routes)?;
        clients::check_files(self)?;
        machine::check_files(self)?;
        site::check_files(&self.routes)?;
        for (number, route) in self.routes.iter().enumerate().filter(|(_, route)| !route.files.is_empty()) {
            if !PathBuf::from(&route.files).is_dir() {
                let message = format!("expected a directory, found none at {}", route.files);
                let at = [Key("route"), Number(number), Key("files")];
                return Err(Fault::of(&at, message, ConfigCause::NoDirectory));
            }
        }
        Ok(())
    }
}

/// Fault of a file with root certificates.
fn roots(at: &[Step], error: crate::trust::RootsError) -> Fault {
    Fault::of(at, error.to_string(), ConfigCause::Roots(Arc::new(error)))
}
