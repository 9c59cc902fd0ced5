//! QUIC over real UDP sockets: async endpoints, connections, streams and datagrams.
