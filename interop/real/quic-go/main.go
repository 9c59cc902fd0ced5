// The peer on quic-go. The contract is in interop/README.md; src/contract.rs states the same for the Rust peers.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

const (
	alpn        = "tiderace-interop"
	serverName  = "peer.test"
	maxTransfer = 1 << 30
	maxLine     = 32
	// period is prime, so that no packet or buffer size divides it.
	period = 65521
)

// figures is what a peer prints at its end.
type figures struct {
	OK            bool    `json:"ok"`
	Error         string  `json:"error,omitempty"`
	BytesReceived int64   `json:"bytes_received"`
	BytesSent     int64   `json:"bytes_sent"`
	Seconds       float64 `json:"seconds"`
	KeyUpdates    int64   `json:"key_updates"`
	Version       string  `json:"version"`
}

// pattern is one period of the known bytes.
var pattern = func() []byte {
	out, state := make([]byte, period), uint32(1)
	for i := range out {
		state = (state*1103515245 + 12345) & 0x7fffffff
		out[i] = byte(state >> 16)
	}
	return out
}()

// patternAt returns the known bytes from offset on, up to the end of the period or max.
func patternAt(offset, max int64) []byte {
	start := offset % period
	return pattern[start:min(start+max, period)]
}

func writePattern(w io.Writer, length int64) error {
	for sent := int64(0); sent < length; {
		n, err := w.Write(patternAt(sent, length-sent))
		if err != nil {
			return err
		}
		sent += int64(n)
	}
	return nil
}

// keyUpdates counts those of all connections of this process. quic-go tells of them only in its qlog events.
var keyUpdates atomic.Int64

type recorder struct{}

func (recorder) AddProducer() qlogwriter.Recorder { return recorder{} }
func (recorder) SupportsSchemas(string) bool      { return false }
func (recorder) Close() error                     { return nil }
func (recorder) RecordEvent(event qlogwriter.Event) {
	// Each update is told once for each direction.
	if e, ok := event.(qlog.KeyUpdated); ok && e.KeyType == qlog.KeyTypeClient1RTT && e.Trigger != qlog.KeyUpdateTLS {
		keyUpdates.Add(1)
	}
}

func config() *quic.Config {
	return &quic.Config{
		MaxIncomingStreams: 200,
		// Longer than the five seconds of the default: handshakes that lose a third of their packets take their time.
		HandshakeIdleTimeout: 30 * time.Second,
		Allow0RTT:            true,
		Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
			return recorder{}
		},
	}
}

func main() {
	var result figures
	err := run(&result)
	result.OK, result.KeyUpdates, result.Version = err == nil, keyUpdates.Load(), version()
	if err != nil {
		result.Error = err.Error()
	}
	line, _ := json.Marshal(result)
	fmt.Println(string(line))
	if err != nil {
		os.Exit(1)
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/quic-go/quic-go" {
				return "quic-go " + module.Version
			}
		}
	}
	return "quic-go"
}

func run(result *figures) error {
	if len(os.Args) < 2 {
		return errors.New("usage: quic-go-peer server|client …")
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ContinueOnError)
	switch os.Args[1] {
	case "server":
		listen := flags.String("listen", "", "address and port")
		cert := flags.String("cert", "", "certificate chain, PEM")
		key := flags.String("key", "", "private key, PEM")
		retry := flags.Bool("retry", false, "validate addresses with Retry")
		early := flags.Bool("early", false, "accept early data")
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		return serve(*listen, *cert, *key, *retry, *early)
	case "client":
		connect := flags.String("connect", "", "address and port")
		ca := flags.String("ca", "", "root certificate, PEM")
		get := flags.Int64("get", 0, "bytes to get on each stream")
		put := flags.Int64("put", 0, "bytes to put on each stream")
		streams := flags.Int("streams", 1, "streams at once")
		// quic-go starts a key update by itself after the first 100 packets and cannot be asked to.
		flags.Bool("key-update", false, "let a key update happen")
		connections := flags.Int("connections", 1, "connections, one after the other")
		resume := flags.Bool("resume", false, "resume the session of the connection before")
		early := flags.Bool("early", false, "send the requests of a resumed connection as early data")
		chacha20 := flags.Bool("chacha20", false, "offer ChaCha20-Poly1305 alone")
		v2 := flags.Bool("v2", false, "speak version 2")
		migrate := flags.Bool("migrate", false, "go on from another socket")
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		if *chacha20 {
			return errors.New("Go chooses the suite of TLS 1.3 by itself")
		}
		job := job{*connect, *ca, *get, *put, *streams, *connections, *resume, *early, *v2, *migrate}
		return request(result, job)
	default:
		return fmt.Errorf("%q is neither server nor client", os.Args[1])
	}
}

func serve(listen, cert, key string, retry, early bool) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp", listen)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket, VerifySourceAddress: func(net.Addr) bool { return retry }}
	settings := config()
	settings.Allow0RTT = early
	listener, err := transport.ListenEarly(&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{alpn}}, settings)
	if err != nil {
		return err
	}
	ready, _ := json.Marshal(map[string]any{"ready": true, "address": listener.Addr().String()})
	fmt.Println(string(ready))
	go func() {
		for {
			connection, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				for {
					stream, err := connection.AcceptStream(context.Background())
					if err != nil {
						return
					}
					go func() {
						if err := answer(stream); err != nil {
							fmt.Fprintln(os.Stderr, "stream:", err)
						}
					}()
				}
			}()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = transport.Close()
	return nil
}

// answer serves one stream.
func answer(stream *quic.Stream) error {
	reader := bufio.NewReader(stream)
	line, err := reader.ReadSlice('\n')
	if err != nil || len(line) > maxLine {
		return fmt.Errorf("bad request %q: %v", line, err)
	}
	var verb string
	var length int64
	if _, err := fmt.Sscanf(string(line), "%s %d\n", &verb, &length); err != nil || length < 0 || length > maxTransfer {
		return fmt.Errorf("bad request %q: %v", line, err)
	}
	switch verb {
	case "GET":
		err = writePattern(stream, length)
	case "PUT":
		hash := sha256.New()
		var got int64
		if got, err = io.Copy(hash, reader); err == nil {
			_, err = fmt.Fprintf(stream, "%d %x\n", got, hash.Sum(nil))
		}
	default:
		err = fmt.Errorf("bad request %q", line)
	}
	if err != nil {
		return err
	}
	return stream.Close()
}

// job is what a client has to do.
type job struct {
	connect, ca          string
	get, put             int64
	streams, connections int
	resume, early        bool
	v2, migrate          bool
}

func request(result *figures, job job) error {
	pem, err := os.ReadFile(job.ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("no certificate in %s", job.ca)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	tlsConfig := &tls.Config{RootCAs: roots, ServerName: serverName, NextProtos: []string{alpn}}
	if job.resume {
		tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(10)
	}
	settings := config()
	if job.v2 {
		settings.Versions = []quic.Version{quic.Version2}
	}
	server, err := net.ResolveUDPAddr("udp", job.connect)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket}
	defer transport.Close()
	start := time.Now()
	for number := range job.connections {
		early := job.early && number > 0
		dial := transport.Dial
		if early {
			dial = transport.DialEarly
		}
		connection, err := dial(ctx, server, tlsConfig, settings)
		if err != nil {
			return fmt.Errorf("handshake: %w", err)
		}
		if err := exchange(ctx, connection, job); err != nil {
			return err
		}
		state := connection.ConnectionState()
		if early && !state.Used0RTT {
			return errors.New("early data was not used")
		}
		if job.resume && number > 0 && !state.TLS.DidResume {
			return errors.New("the session was not resumed")
		}
		// The ticket comes after the answer.
		if job.resume && number == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if err := connection.CloseWithError(0, "done"); err != nil {
			return err
		}
	}
	result.Seconds = time.Since(start).Seconds()
	result.BytesReceived, result.BytesSent = job.get*int64(job.streams), job.put*int64(job.streams)
	return nil
}

// exchange does all streams of one connection.
func exchange(ctx context.Context, connection *quic.Conn, job job) error {
	var group sync.WaitGroup
	failures := make(chan error, job.streams+1)
	for range job.streams {
		group.Add(1)
		go func() {
			defer group.Done()
			if job.get > 0 {
				if err := getBytes(ctx, connection, job.get, job.migrate); err != nil {
					failures <- err
					return
				}
			}
			if job.put > 0 {
				if err := putBytes(ctx, connection, job.put); err != nil {
					failures <- err
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures
}

// move goes on from another socket.
func move(ctx context.Context, connection *quic.Conn) error {
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	path, err := connection.AddPath(&quic.Transport{Conn: socket})
	if err != nil {
		return fmt.Errorf("another path: %w", err)
	}
	if err := path.Probe(ctx); err != nil {
		return fmt.Errorf("probe of another path: %w", err)
	}
	return path.Switch()
}

func getBytes(ctx context.Context, connection *quic.Conn, length int64, migrate bool) error {
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stream, "GET %d\n", length); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	buffer, got := make([]byte, 64*1024), int64(0)
	for {
		n, err := stream.Read(buffer)
		for data := buffer[:n]; len(data) > 0; {
			expected := patternAt(got, int64(len(data)))
			if !bytes.Equal(data[:len(expected)], expected) {
				return fmt.Errorf("wrong byte after %d", got)
			}
			got, data = got+int64(len(expected)), data[len(expected):]
		}
		if migrate && got >= length/4 {
			migrate = false
			if err := move(ctx, connection); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if got != length {
		return fmt.Errorf("got %d of %d bytes", got, length)
	}
	return nil
}

func putBytes(ctx context.Context, connection *quic.Conn, length int64) error {
	stream, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(stream, "PUT %d\n", length); err != nil {
		return err
	}
	if err := writePattern(stream, length); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(stream, 200))
	if err != nil {
		return err
	}
	hash := sha256.New()
	_ = writePattern(hash, length)
	if expected := fmt.Sprintf("%d %x", length, hash.Sum(nil)); strings.TrimSpace(string(answer)) != expected {
		return fmt.Errorf("the server got something else: %q", answer)
	}
	return nil
}
