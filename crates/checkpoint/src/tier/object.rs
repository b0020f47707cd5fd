//! An object store: S3, Google Cloud Storage or Azure.
//!
//! An object appears whole or not at all, and a conditional put gives a name to the first who asks
//! for it: that is all a checkpoint needs. Credentials come from the environment, as each cloud's own
//! tools read it.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, WriteMultipart};

use super::{Item, Source, Tier, TierError};

/// What is smaller goes in one request.
const PART: u64 = 16 << 20;
/// S3 takes 10,000 parts of one object at most.
const PARTS: u64 = 9_000;
/// Requests at a time.
const PARALLEL: usize = 8;

pub struct Object {
    label: String,
    prefix: String,
    store: Box<dyn ObjectStore>,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("{url} does not name a bucket, as in s3://bucket/prefix")]
    NoBucket { url: String },
    #[error("{name} is not an option of {url}")]
    Option { url: String, name: String },
    #[error("{url} can't be used: {source}")]
    Setup {
        url: String,
        #[source]
        source: Box<Error>,
    },
}

impl Object {
    /// `options` are those of `object_store` by their usual names: `aws_endpoint`, `aws_region`.
    pub fn open(url: &str, options: &[(String, String)]) -> Result<Object, ObjectError> {
        // The TLS of the whole program is rustls with ring; somebody may have said so already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let none = || ObjectError::NoBucket { url: url.to_owned() };
        let (scheme, rest) = url.split_once("://").ok_or_else(none)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(none());
        }
        let fail = |e| ObjectError::Setup { url: url.to_owned(), source: Box::new(e) };
        macro_rules! build {
            ($builder:expr) => {{
                let mut builder = $builder;
                for (name, value) in options {
                    let key = name.to_ascii_lowercase().parse().map_err(|_| {
                        let (url, name) = (url.to_owned(), name.clone());
                        ObjectError::Option { url, name }
                    })?;
                    builder = builder.with_config(key, value);
                }
                Box::new(builder.build().map_err(fail)?) as Box<dyn ObjectStore>
            }};
        }
        let store = match scheme {
            "gs" => build!(GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket)),
            "az" => build!(MicrosoftAzureBuilder::from_env().with_container_name(bucket)),
            _ => build!(AmazonS3Builder::from_env().with_bucket_name(bucket)),
        };
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(Object { label: url.to_owned(), prefix, store })
    }

    fn at(&self, path: &str) -> Path {
        Path::from_iter(self.prefix.split('/').chain(path.split('/')).filter(|p| !p.is_empty()))
    }

    fn error(&self, doing: &'static str, path: &str, error: Error) -> TierError {
        let (place, path) = (self.label.clone(), path.to_owned());
        match error {
            Error::NotFound { .. } => TierError::Missing { place, path },
            e @ Error::Generic { .. } => {
                TierError::Silent { place, path, doing, source: std::io::Error::other(e) }
            }
            e => TierError::Io { place, path, doing, source: std::io::Error::other(e) },
        }
    }

    async fn upload(&self, at: &Path, len: u64, data: &mut Source<'_>) -> Result<u64, Upload> {
        let upload = self.store.put_multipart(at).await?;
        let part = PART.max(len.div_ceil(PARTS));
        let part = usize::try_from(part).expect("a part fits into memory");
        let mut write = WriteMultipart::new_with_chunk_size(upload, part);
        let mut found = 0;
        for bytes in data {
            let mut bytes = match bytes {
                Ok(bytes) => bytes,
                Err(e) => {
                    // What the source says is the failure to tell.
                    let _ = write.abort().await;
                    return Err(Upload::Source(e));
                }
            };
            found += bytes.len() as u64;
            while !bytes.is_empty() {
                write.wait_for_capacity(PARALLEL).await?;
                write.put(bytes.split_to(bytes.len().min(part)));
            }
        }
        if found == len {
            write.finish().await?;
        } else {
            write.abort().await?;
        }
        Ok(found)
    }
}

enum Upload {
    Source(TierError),
    Store(Error),
}

impl From<Error> for Upload {
    fn from(e: Error) -> Upload {
        Upload::Store(e)
    }
}

impl Tier for Object {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_near(&self) -> bool {
        false
    }

    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        let at = self.at(path);
        let fail = |e| self.error("write", path, e);
        let found = if len <= PART {
            let mut whole = BytesMut::new();
            for bytes in data {
                whole.extend_from_slice(&bytes?);
            }
            let found = whole.len() as u64;
            if found == len {
                let payload = PutPayload::from(whole.freeze());
                block_on(self.store.put(&at, payload)).map_err(fail)?;
            }
            found
        } else {
            block_on(self.upload(&at, len, data)).map_err(|e| match e {
                Upload::Source(e) => e,
                Upload::Store(e) => fail(e),
            })?
        };
        if found != len {
            let (place, path) = (self.label.clone(), path.to_owned());
            return Err(TierError::Short { place, path, wanted: len, found });
        }
        Ok(())
    }

    fn publish(&self, path: &str, _scratch: &str, bytes: &[u8]) -> Result<bool, TierError> {
        let payload = PutPayload::from(Bytes::copy_from_slice(bytes));
        let created =
            block_on(self.store.put_opts(&self.at(path), payload, PutMode::Create.into()));
        match created {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(e) => Err(self.error("publish", path, e)),
        }
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let wanted = range.end - range.start;
        let bytes = block_on(self.store.get_range(&self.at(path), range.clone()))
            .map_err(|e| self.error("read", path, e))?;
        if bytes.len() as u64 != wanted {
            let (place, path) = (self.label.clone(), path.to_owned());
            let found = range.start + bytes.len() as u64;
            return Err(TierError::Short { place, path, wanted: range.end, found });
        }
        Ok(bytes)
    }

    fn size(&self, path: &str) -> Result<Option<u64>, TierError> {
        match block_on(self.store.head(&self.at(path))) {
            Ok(found) => Ok(Some(found.size)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.error("look at", path, e)),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        let at = self.at(dir);
        let found = block_on(self.store.list_with_delimiter(Some(&at)))
            .map_err(|e| self.error("list", dir, e))?;
        let name = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let dirs = found.common_prefixes.iter().map(|p| Item { name: name(p), is_dir: true });
        let files = found.objects.iter().map(|o| Item { name: name(&o.location), is_dir: false });
        let mut items: Vec<Item> = dirs.chain(files).collect();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(items)
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        match block_on(self.store.delete(&self.at(path))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.error("remove", path, e)),
        }
    }

    fn settle(&self, _dir: &str) -> Result<(), TierError> {
        Ok(())
    }

    fn prune(&self, _dir: &str) -> Result<(), TierError> {
        Ok(())
    }
}

/// Only the object stores need tokio, so it stays in here.
fn block_on<F: Future>(future: F) -> F::Output {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("objects")
            .enable_all()
            .build()
            .expect("the system gives threads")
    });
    runtime.block_on(future)
}
