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
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		return serve(*listen, *cert, *key, *retry)
	case "client":
		connect := flags.String("connect", "", "address and port")
		ca := flags.String("ca", "", "root certificate, PEM")
		get := flags.Int64("get", 0, "bytes to get on each stream")
		put := flags.Int64("put", 0, "bytes to put on each stream")
		streams := flags.Int("streams", 1, "streams at once")
		// quic-go starts a key update by itself after the first 100 packets and cannot be asked to.
		flags.Bool("key-update", false, "let a key update happen")
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		return request(result, *connect, *ca, *get, *put, *streams)
	default:
		return fmt.Errorf("%q is neither server nor client", os.Args[1])
	}
}

func serve(listen, cert, key string, retry bool) error {
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
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{alpn}}, config())
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

func request(result *figures, connect, ca string, get, put int64, streams int) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("no certificate in %s", ca)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	tlsConfig := &tls.Config{RootCAs: roots, ServerName: serverName, NextProtos: []string{alpn}}
	connection, err := quic.DialAddr(ctx, connect, tlsConfig, config())
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	var group sync.WaitGroup
	failures := make(chan error, streams)
	for range streams {
		group.Add(1)
		go func() {
			defer group.Done()
			if get > 0 {
				if err := getBytes(ctx, connection, get); err != nil {
					failures <- err
					return
				}
			}
			if put > 0 {
				if err := putBytes(ctx, connection, put); err != nil {
					failures <- err
				}
			}
		}()
	}
	group.Wait()
	result.Seconds = time.Since(start).Seconds()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	result.BytesReceived, result.BytesSent = get*int64(streams), put*int64(streams)
	return connection.CloseWithError(0, "done")
}

func getBytes(ctx context.Context, connection *quic.Conn, length int64) error {
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
