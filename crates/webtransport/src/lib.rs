//! WebTransport over HTTP/3 (draft-ietf-webtrans-http3): sessions with streams and datagrams, both sides.
