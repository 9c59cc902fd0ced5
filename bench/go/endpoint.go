package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

const (
	serverName = "localhost"
	alpn       = "bench"
)

func config(work job) *quic.Config {
	return &quic.Config{
		InitialStreamReceiveWindow:     streamWindow,
		MaxStreamReceiveWindow:         streamWindow,
		InitialConnectionReceiveWindow: connectionWindow,
		MaxConnectionReceiveWindow:     connectionWindow,
		MaxIncomingStreams:             work.streamsAllowed(),
		MaxIdleTimeout:                 idleTimeout,
		EnableDatagrams:                true,
		Allow0RTT:                      work.resumes(),
		InitialPacketSize:              udpPayload,
		DisablePathMTUDiscovery:        true,
	}
}

// open binds a socket with large buffers, and says how large the kernel made the receive buffer.
func open(address string) (*quic.Transport, uint64, error) {
	local, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, 0, err
	}
	socket, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, 0, err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var granted int
	var failed error
	err = raw.Control(func(descriptor uintptr) {
		fd := int(descriptor)
		for _, options := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, options[0], socketBuffer) != nil {
				failed = unix.SetsockoptInt(fd, unix.SOL_SOCKET, options[1], socketBuffer)
			}
		}
		granted, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	})
	if err == nil {
		err = failed
	}
	return &quic.Transport{Conn: socket}, uint64(granted), err
}

// countedKey counts what is signed with it.
type countedKey struct {
	*ecdsa.PrivateKey
	count *atomic.Int64
}

func (k countedKey) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	k.count.Add(1)
	return k.PrivateKey.Sign(random, digest, options)
}

// serverTLS makes a P-256 authority and a leaf that it signed; returns the settings and the authority's certificate.
func serverTLS(signatures *atomic.Int64) (*tls.Config, []byte, error) {
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: serverName},
		NotBefore:    authority.NotBefore,
		NotAfter:     authority.NotAfter,
		DNSNames:     []string{serverName},
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, nil, err
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), authorityKey)
	if err != nil {
		return nil, nil, err
	}
	certificate := tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: countedKey{key, signatures}}
	return &tls.Config{
		Certificates:     []tls.Certificate{certificate},
		NextProtos:       []string{alpn},
		CurvePreferences: []tls.CurveID{tls.X25519},
	}, authorityDER, nil
}

func clientTLS(work job, authority []byte) (*tls.Config, error) {
	certificate, err := x509.ParseCertificate(authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	settings := &tls.Config{
		RootCAs:          roots,
		ServerName:       serverName,
		NextProtos:       []string{alpn},
		CurvePreferences: []tls.CurveID{tls.X25519},
	}
	if work.resumes() {
		settings.ClientSessionCache = tls.NewLRUClientSessionCache(16)
	}
	return settings, nil
}
