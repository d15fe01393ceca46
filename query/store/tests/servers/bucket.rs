//! A server that speaks S3 and keeps its objects in a folder, from the crates `s3s` and `s3s-fs`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;

use super::await_that;

const KEY: &str = "somebody";
const SECRET: &str = "whose secret is no secret";

/// See the [module](self). Its thread ends with the test's process.
pub(crate) struct Bucket {
    root: TempDir,
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Bucket {
    pub(crate) fn start() -> Bucket {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("bucket")).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let served =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
                    // Connections that are cut are a part of the tests.
                    let count = count.clone();
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(async move {
                        drop(served.await);
                        count.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            })
        });
        Bucket {
            root,
            address,
            connections,
        }
    }

    /// Waits until the server has noticed that its clients are gone.
    pub(crate) fn settle(&self) {
        await_that("no client is left", || {
            self.connections.load(Ordering::SeqCst) == 0
        });
    }

    /// The folder of the objects of `s3://bucket/traces`.
    pub(crate) fn objects(&self) -> PathBuf {
        self.root.path().join("bucket/traces")
    }

    /// The number of files of uploads that have not been finished.
    pub(crate) fn unfinished(&self) -> usize {
        let entries = std::fs::read_dir(self.root.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(".upload")).count()
    }

    /// The variables with which it is found at an address.
    pub(crate) fn variables(&self, address: SocketAddr) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ENDPOINT", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }
}
