package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// settle is the wait before memory is read, as for the other contenders.
const settle = 1500 * time.Millisecond

func serve(work job, listen string) (*report, error) {
	var signatures atomic.Int64
	settings, authority, err := serverTLS(&signatures)
	if err != nil {
		return nil, err
	}
	transport, granted, err := open(listen)
	if err != nil {
		return nil, err
	}
	listener, err := transport.Listen(settings, config(work))
	if err != nil {
		return nil, err
	}
	if err := announce(listener.Addr().String(), authority); err != nil {
		return nil, err
	}
	var result *report
	switch work.mode {
	case "bulk", "bulk-streams", "bulk-connections":
		result, err = receiveBulk(work, listener)
	case "hs", "hsr":
		result, err = acceptHandshakes(work, listener, &signatures)
	case "rr":
		result, err = answerRequests(work, listener)
	case "dgram":
		result, err = receiveDatagrams(work, listener)
	case "idle":
		result, err = keepIdle(work, listener)
	default:
		err = fmt.Errorf("unknown mode %q", work.mode)
	}
	if err != nil {
		return nil, err
	}
	result.SocketBuffer = &granted
	return result, nil
}

// answer reads a request from the next stream to its end, and answers it.
func answer(connection *quic.Conn, request, response []byte) error {
	stream, err := connection.AcceptStream(context.Background())
	if err != nil {
		return err
	}
	asked, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	if !bytes.Equal(asked, request) {
		return errors.New("the client's request is wrong")
	}
	if _, err := stream.Write(response); err != nil {
		return err
	}
	return stream.Close()
}

func receiveBulk(work job, listener *quic.Listener) (*report, error) {
	var begin sync.Once
	var measured *meter
	type received struct {
		stream  *quic.Stream
		samples int64
		err     error
	}
	streams := make(chan received, work.connections*work.streams)
	var connections []*quic.Conn
	for range work.connections {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return nil, err
		}
		connections = append(connections, connection)
		go func() {
			for range work.streams {
				stream, err := connection.AcceptStream(context.Background())
				if err != nil {
					streams <- received{err: err}
					return
				}
				go func() {
					samples, err := receive(stream, work.bytesPerStream(), func() { begin.Do(func() { measured = startMeter() }) })
					streams <- received{stream, samples, err}
				}()
			}
		}()
	}
	var samples int64
	var answers []*quic.Stream
	for range work.connections * work.streams {
		one := <-streams
		if one.err != nil {
			return nil, one.err
		}
		samples += one.samples
		answers = append(answers, one.stream)
	}
	measured.stop()
	for _, stream := range answers {
		if _, err := stream.Write([]byte("received")); err != nil {
			return nil, err
		}
		if err := stream.Close(); err != nil {
			return nil, err
		}
	}
	for _, connection := range connections {
		<-connection.Context().Done()
	}
	result := measured.report("server", work.bytesPerStream()*work.streams*work.connections)
	result.ContentSamples = samples
	return result, nil
}

func receive(stream *quic.Stream, expected int64, begin func()) (int64, error) {
	buffer := make([]byte, 256<<10)
	var content check
	for {
		n, err := stream.Read(buffer)
		if n > 0 {
			begin()
			if err := content.take(buffer[:n]); err != nil {
				return 0, err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if content.bytes != expected {
		return 0, fmt.Errorf("%d bytes arrived, %d were sent", content.bytes, expected)
	}
	return content.samples, nil
}

func acceptHandshakes(work job, listener *quic.Listener, signatures *atomic.Int64) (*report, error) {
	measured := startMeter()
	var before int64
	var closing sync.WaitGroup
	for number := range handshakesBefore + work.amount {
		if number == handshakesBefore {
			measured, before = startMeter(), signatures.Load()
		}
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return nil, err
		}
		if err := answer(connection, []byte("?"), []byte("!")); err != nil {
			return nil, err
		}
		closing.Go(func() { <-connection.Context().Done() })
	}
	closing.Wait()
	measured.stop()
	result := measured.report("server", work.amount)
	made := signatures.Load() - before
	result.Signatures = &made
	return result, nil
}

func answerRequests(work job, listener *quic.Listener) (*report, error) {
	connection, err := listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	request, response := contentAt(0, requestSize), contentAt(0, responseSize)
	var measured *meter
	for range work.amount {
		if err := answer(connection, request, response); err != nil {
			return nil, err
		}
		if measured == nil {
			measured = startMeter()
		}
	}
	<-connection.Context().Done()
	measured.stop()
	result := measured.report("server", work.amount)
	result.ContentSamples = work.amount
	return result, nil
}

func receiveDatagrams(work job, listener *quic.Listener) (*report, error) {
	connection, err := listener.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	var arrived atomic.Int64
	var wrong atomic.Bool
	var began atomic.Pointer[meter]
	go func() {
		for {
			data, err := connection.ReceiveDatagram(context.Background())
			if err != nil {
				return
			}
			if arrived.Load() == 0 {
				began.Store(startMeter())
			}
			if len(data) != datagramSize || !bytes.Equal(data[8:40], block[8:40]) {
				wrong.Store(true)
				return
			}
			arrived.Add(1)
		}
	}()
	stream, err := connection.AcceptStream(context.Background())
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadAll(stream); err != nil {
		return nil, err
	}
	count, measured := arrived.Load(), began.Load()
	if measured == nil || wrong.Load() {
		return nil, errors.New("no datagram arrived, or a wrong one")
	}
	measured.stop()
	if _, err := stream.Write(binary.BigEndian.AppendUint64(nil, uint64(count))); err != nil {
		return nil, err
	}
	if err := stream.Close(); err != nil {
		return nil, err
	}
	<-connection.Context().Done()
	result := measured.report("server", count)
	result.ContentSamples = count
	return result, nil
}

func keepIdle(work job, listener *quic.Listener) (*report, error) {
	var connections []*quic.Conn
	var before, after int64
	measured := startMeter()
	for number := int64(1); number <= idleBefore+work.amount; number++ {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return nil, err
		}
		connections = append(connections, connection)
		stream, err := connection.AcceptStream(context.Background())
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadAll(stream); err != nil {
			return nil, err
		}
		// The client waits for the answer before it goes on, so nothing happens meanwhile.
		switch number {
		case idleBefore:
			time.Sleep(settle)
			if before, err = residentBytes(); err != nil {
				return nil, err
			}
			measured = startMeter()
		case idleBefore + work.amount:
			time.Sleep(settle)
			measured.stop()
			if after, err = residentBytes(); err != nil {
				return nil, err
			}
		}
		if _, err := stream.Write([]byte("!")); err != nil {
			return nil, err
		}
		if err := stream.Close(); err != nil {
			return nil, err
		}
	}
	for _, connection := range connections {
		<-connection.Context().Done()
	}
	result := measured.report("server", work.amount)
	growth := max(after-before, 0)
	result.MemoryGrowth = &growth
	return result, nil
}
