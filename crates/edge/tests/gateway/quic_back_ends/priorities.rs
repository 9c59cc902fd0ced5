//! Priorities of clients at a back end over HTTP/3 (RFC 9218).

use h3_quic::{PriorityChanges, client::SendRequest, priority::Priority};

use super::*;

/// The field of a request, its changes, and what has the head and then the content of its response sent.
struct Seen {
    field: Option<String>,
    changes: PriorityChanges,
    go: Arc<Notify>,
}

/// A back end that hands its requests over.
async fn back_end() -> (Origin, mpsc::UnboundedReceiver<Seen>) {
    let (tell, told) = mpsc::unbounded_channel();
    let origin = Origin::start(move |request: Request<RequestBody>, _| {
        let field = request.headers().get("priority").map(|value| value.to_str().unwrap().to_owned());
        let changes = request.extensions().get::<PriorityChanges>().unwrap().clone();
        let go = Arc::new(Notify::new());
        tell.send(Seen { field, changes, go: go.clone() }).unwrap();
        async move {
            go.notified().await;
            let (mut sender, content) = Channel::<Bytes, Error>::new(1);
            tokio::spawn(async move {
                go.notified().await;
                let _ = sender.send_data(pattern(1_000)).await;
            });
            Response::new(content.boxed_unsync())
        }
    })
    .await;
    (origin, told)
}

fn priority(urgency: u8, incremental: bool) -> Priority {
    Priority { urgency, incremental }
}

/// Changes before the response, between its head and its content, and of a request without a field.
async fn changes_arrive(h3: &SendRequest, told: &mut mpsc::UnboundedReceiver<Seen>) {
    let reserved = within(h3.reserve()).await.unwrap();
    let change = reserved.change_priority();
    let request = Request::get("https://localhost/").header("priority", "u=5, i").body(full("")).unwrap();
    let answered = tokio::spawn(reserved.send(request));
    let seen = within(told.recv()).await.unwrap();
    assert_eq!(seen.field.as_deref(), Some("u=5, i"));
    let early = tokio::time::timeout(Duration::from_millis(100), seen.changes.changed()).await;
    assert!(early.is_err(), "{early:?}");
    for (urgency, incremental) in [(0, false), (7, true), (3, false)] {
        change.set(priority(urgency, incremental));
        assert_eq!(within(seen.changes.changed()).await, priority(urgency, incremental));
    }
    seen.go.notify_one();
    let answer = within(answered).await.unwrap().unwrap();
    change.set(priority(1, true));
    assert_eq!(within(seen.changes.changed()).await, priority(1, true));
    seen.go.notify_one();
    assert_eq!(within(answer.into_body().collect()).await.unwrap().to_bytes().len(), 1_000);
    // Of one that has ended nothing more comes, and nothing is held up by it.
    change.set(priority(2, true));
    let answered = tokio::spawn(within(h3.reserve()).await.unwrap().send(get("https://localhost/")));
    let seen = within(told.recv()).await.unwrap();
    assert_eq!(seen.field, None);
    seen.go.notify_one();
    seen.go.notify_one();
    let answer = within(answered).await.unwrap().unwrap();
    seen.go.notify_one();
    assert_eq!(within(answer.into_body().collect()).await.unwrap().to_bytes().len(), 1_000);
}

/// RFC 9218 §7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_and_changes_reach_the_back_end() {
    let (origin, mut told) = back_end().await;
    let (site, _roots) = gateway("h3-priorities", &origin.certificate, &route(origin.address, ""));
    let (_endpoint, h3) = site.h3().await;
    changes_arrive(&h3, &mut told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_pass_two_gateways() {
    let (origin, mut told) = back_end().await;
    let (behind, _roots) = gateway("h3-priorities-behind", &origin.certificate, &route(origin.address, ""));
    let (front, _more_roots) = super::chain::in_front("h3-priorities-front", &behind, "", "");
    let (_endpoint, h3) = front.h3().await;
    changes_arrive(&h3, &mut told).await;
}
