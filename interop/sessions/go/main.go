// Sessions of WebTransport by webtransport-go, in either role. README.md in the folder above has what both do.
//
//	sessions server --listen ADDRESS --cert PEM --key PEM   until standard input ends
//	sessions client --connect ADDRESS --ca PEM
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/webtransport-go"
)

const patience = time.Minute

// limits of a session's flow control: streams wait for credit, and data does.
var limits = webtransport.Config{MaxIncomingStreams: 20, MaxIncomingUniStreams: 20, MaxIncomingData: 1 << 20}

var quicConfig = quic.Config{EnableDatagrams: true, EnableStreamResetPartialDelivery: true}

func main() {
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	listen, connect := flags.String("listen", "", ""), flags.String("connect", "", "")
	cert, key, ca := flags.String("cert", "", ""), flags.String("key", "", ""), flags.String("ca", "", "")
	flags.Parse(os.Args[2:])
	if os.Args[1] == "server" {
		serveAll(*listen, *cert, *key)
	} else {
		requestAll(*connect, *ca)
	}
}

func serveAll(listen, cert, key string) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		log.Fatal(err)
	}
	socket, err := net.ListenPacket("udp", listen)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	tlsConfig := &tls.Config{Certificates: []tls.Certificate{pair}}
	server := webtransport.Server{
		Config:               &limits,
		ApplicationProtocols: served,

		H3: &http3.Server{TLSConfig: http3.ConfigureTLSConfig(tlsConfig), QUICConfig: &quicConfig, Handler: mux},
	}
	for _, path := range []string{"/streams", "/close"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			session, err := server.Upgrade(w, r)
			if err != nil {
				log.Print("no session: ", err)
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			serve(session, path).print()
		})
	}
	go func() { log.Fatal(server.Serve(socket)) }()
	fmt.Printf("{\"ready\": true, \"address\": %q}\n", socket.LocalAddr())
	io.Copy(io.Discard, os.Stdin)
}

func requestAll(connect, ca string) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	tlsConfig := &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}
	connection, err := quic.DialAddr(ctx, connect, tlsConfig, &quicConfig)
	if err != nil {
		log.Fatal(err)
	}
	transport := webtransport.Transport{
		Config: &limits, ApplicationProtocols: offered, TLSClientConfig: tlsConfig, QUICConfig: &quicConfig,
	}
	client, err := transport.NewClientConn(connection)
	if err != nil {
		log.Fatal(err)
	}
	begin := func(path string) *webtransport.Session {
		response, session, err := client.Dial(ctx, "https://"+connect+path, nil)
		if err != nil {
			log.Fatalf("no session: %v, %v", response, err)
		}
		return session
	}
	// Both at the same time: the close of one session leaves the other alone. The first is read while the second is opened: its data would
	// use up the credit of the connection, and leave none for the answer to the second.
	first, second := begin("/streams"), make(chan *webtransport.Session, 1)
	go func() { second <- begin("/close") }()
	request(first).print()
	requestClose(<-second).print()
	time.Sleep(200 * time.Millisecond)
	connection.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "")
}

func send(stream io.WriteCloser, data []byte) error {
	if _, err := stream.Write(data); err != nil {
		return err
	}
	return stream.Close()
}

func read(stream io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(stream, maxBytes))
}

// openAll opens all streams of one end, and checks the answers on bidirectional ones.
func openAll(session *webtransport.Session, t *tally, asks, answers, oneWay byte) {
	ctx := session.Context()
	for index := range uint32(streams) {
		go func() {
			t.note(fmt.Sprintf("bidirectional stream %d", index), func() error {
				stream, err := session.OpenStreamSync(ctx)
				if err != nil {
					return err
				}
				sent := make(chan error, 1)
				go func() { sent <- send(stream, content(asks, index)) }()
				got, err := read(stream)
				if err != nil {
					return err
				}
				if its, err := t.check(answers, got); err != nil || its != index {
					return fmt.Errorf("answer of stream %d: %w", its, err)
				}
				return <-sent
			}())
		}()
		go func() {
			t.note(fmt.Sprintf("unidirectional stream %d", index), func() error {
				stream, err := session.OpenUniStreamSync(ctx)
				if err != nil {
					return err
				}
				return send(stream, content(oneWay, index))
			}())
		}()
	}
}

// answerAll answers on bidirectional streams of the peer, until the session is over.
func answerAll(session *webtransport.Session, t *tally, asks, answers byte) {
	for {
		stream, err := session.AcceptStream(session.Context())
		if err != nil {
			return
		}
		go func() {
			t.note("a stream of the peer", func() error {
				got, err := read(stream)
				if err != nil {
					return err
				}
				index, err := t.check(asks, got)
				if err != nil {
					return err
				}
				return send(stream, content(answers, index))
			}())
		}()
	}
}

// readAll reads unidirectional streams of the peer, until the session is over; one of kind special is told.
func readAll(session *webtransport.Session, t *tally, oneWay, special byte) <-chan struct{} {
	came := make(chan struct{}, 1)
	go func() {
		for {
			stream, err := session.AcceptUniStream(session.Context())
			if err != nil {
				return
			}
			go func() {
				got, err := read(stream)
				if err == nil && string(got) == string(content(special, 0)) {
					came <- struct{}{}
					return
				}
				if err == nil {
					_, err = t.check(oneWay, got)
				}
				t.note("a unidirectional stream of the peer", err)
			}()
		}
	}()
	return came
}

// wait waits for the end of the session, and says how it ended.
func wait(session *webtransport.Session) closeReport {
	select {
	case <-session.Context().Done():
	case <-time.After(patience):
		return closeReport{How: "the session does not end"}
	}
	// The context does not say how: those who wait for streams are told.
	_, end := session.AcceptUniStream(context.Background())
	var its *webtransport.SessionError
	if errors.As(end, &its) {
		code := uint32(its.ErrorCode)
		return closeReport{Code: &code, Reason: its.Message, How: end.Error()}
	}
	return closeReport{How: end.Error()}
}

func number(payload []byte) (uint32, error) {
	if len(payload) < 4 {
		return 0, errors.New("a datagram without a number")
	}
	index := binary.BigEndian.Uint32(payload)
	if index >= datagrams || string(payload) != string(datagram(index)) {
		return 0, fmt.Errorf("datagram %d has other bytes", index)
	}
	return index, nil
}

func serve(session *webtransport.Session, path string) *report {
	t := newTally(path)
	please := readAll(session, t, up, pleaseClose)
	go func() {
		<-please
		session.CloseWithError(7, "the server is done")
	}()
	if path == "/streams" {
		go answerAll(session, t, ask, answer)
		openAll(session, t, serverAsk, clientAnswer, down)
		go func() {
			if !t.reaches(3 * streams) {
				return
			}
			stream, err := session.OpenUniStreamSync(session.Context())
			if err == nil {
				err = send(stream, content(complete, 0))
			}
			t.note("the last stream", err)
		}()
		go func() {
			seen := map[uint32]bool{}
			for {
				payload, err := session.ReceiveDatagram(session.Context())
				if err != nil {
					return
				}
				session.SendDatagram(payload)
				index, err := number(payload)
				t.note("a datagram", err)
				seen[index] = true
				t.mutex.Lock()
				t.report.Datagrams = len(seen)
				t.mutex.Unlock()
			}
		}()
	}
	t.report.Protocol = session.SessionState().ApplicationProtocol
	t.report.Close = wait(session)
	return &t.report
}

// exchange sends datagrams until all have come back.
func exchange(session *webtransport.Session, t *tally) error {
	seen, inFlight, next := map[uint32]bool{}, map[uint32]bool{}, uint32(0)
	for len(seen) < datagrams {
		for len(inFlight) < 32 && next < datagrams {
			if err := session.SendDatagram(datagram(next)); err != nil {
				return fmt.Errorf("datagram %d: %w", next, err)
			}
			inFlight[next] = true
			next++
		}
		ctx, cancel := context.WithTimeout(session.Context(), time.Second)
		payload, err := session.ReceiveDatagram(ctx)
		cancel()
		switch {
		case err == nil:
			index, err := number(payload)
			if err != nil {
				return err
			}
			seen[index] = true
			delete(inFlight, index)
			t.mutex.Lock()
			t.report.Datagrams = len(seen)
			t.mutex.Unlock()
		case session.Context().Err() != nil:
			return err
		default:
			for index := range inFlight {
				if err := session.SendDatagram(datagram(index)); err != nil {
					return err
				}
				t.report.Resent++
			}
		}
	}
	return nil
}

func request(session *webtransport.Session) *report {
	t := newTally("/streams")
	all := readAll(session, t, down, complete)
	go answerAll(session, t, serverAsk, clientAnswer)
	openAll(session, t, ask, answer, up)
	exchanged := make(chan struct{})
	go func() {
		t.note("datagrams", exchange(session, t))
		if t.reaches(3 * streams) {
			<-all
		}
		close(exchanged)
	}()
	select {
	case <-exchanged:
	case <-time.After(patience):
		t.note("the session", errors.New("not all has come, or the server does not say that it has all"))
	}
	code, reason := uint32(4), "the client is done"
	session.CloseWithError(webtransport.SessionErrorCode(code), reason)
	t.report.Protocol = session.SessionState().ApplicationProtocol
	t.report.Close = closeReport{Code: &code, Reason: reason, How: "closed here"}
	return &t.report
}

func requestClose(session *webtransport.Session) *report {
	t := newTally("/close")
	stream, err := session.OpenUniStreamSync(session.Context())
	if err == nil {
		err = send(stream, content(pleaseClose, 0))
	}
	t.note("the stream that asks for the close", err)
	t.report.Protocol = session.SessionState().ApplicationProtocol
	t.report.Close = wait(session)
	return &t.report
}
