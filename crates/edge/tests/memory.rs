//! Memory of requests: nothing is left behind.

mod site;

use http_body_util::BodyExt;
use site::{BackEnd, Site, get, get1, mirror};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Requests that fill caches and pools, and those that are counted.
const FIRST: usize = 500;
const COUNTED: usize = 2_000;
/// Bytes that may stay for each of them: tables double now and then.
const LEFT: usize = 8;

/// Windows of `COUNTED` calls that are looked at before growth is taken for a leak.
const WINDOWS: usize = 8;

/// Growth of the bytes in use over `COUNTED` calls: the least over some windows.
///
/// What a call leaves behind shows in every window. What is made once does not: a receive buffer of 64 KiB more, because
/// the two ends happened to overlap for the first time, or a table that doubles. Each socket remembers a bounded number
/// of buffers, so such growth ends.
async fn grown(mut call: impl AsyncFnMut()) -> usize {
    for _ in 0..FIRST {
        call().await;
    }
    let mut least = usize::MAX;
    for _ in 0..WINDOWS {
        let before = dhat::HeapStats::get().curr_bytes;
        for _ in 0..COUNTED {
            call().await;
        }
        least = least.min(dhat::HeapStats::get().curr_bytes.saturating_sub(before));
        if least < LEFT * COUNTED {
            break;
        }
    }
    least
}

#[tokio::test]
async fn requests_on_one_connection_leave_nothing_behind() {
    // Where bytes come from is not looked at: most of the time would go into stack traces.
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(2)).build();
    let www = site::Directory::new("www-memory");
    www.write("small", vec![b'x'; 1_000]);
    let back_end = BackEnd::start(mirror).await;
    let config = format!(
        "[limits]\nfields = \"4 KiB\"\n[[route]]\nfiles = \"{}\"\n[[route]]\npath = \"/back\"\nto = \"{}\"\n",
        www.0.display(),
        back_end.url()
    );
    let site = Site::start("memory", &config);
    for path in ["/small", "/back", "/none"] {
        let (_endpoint, mut h3) = site.h3().await;
        let url = format!("https://localhost{path}");
        let left = grown(async || {
            let answer = h3.send(get(&url)).await.unwrap();
            answer.into_body().collect().await.unwrap();
        });
        let left = left.await;
        assert!(left < LEFT * COUNTED, "HTTP/3, {path}: {left} bytes after {COUNTED} requests");
        let mut h1 = site.h1().await;
        let left = grown(async || {
            h1.ready().await.unwrap();
            h1.send_request(get1(path)).await.unwrap().into_body().collect().await.unwrap();
        });
        let left = left.await;
        assert!(left < LEFT * COUNTED, "HTTP/1.1, {path}: {left} bytes after {COUNTED} requests");
    }
    // Given up before the answer is read.
    let (_endpoint, mut h3) = site.h3().await;
    let left = grown(async || drop(h3.send(get("https://localhost/small")).await.unwrap())).await;
    assert!(left < LEFT * COUNTED, "{left} bytes after {COUNTED} requests that were given up");
}
