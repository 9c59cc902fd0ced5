package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// client opens connections to one server.
type client struct {
	transport *quic.Transport
	to        *net.UDPAddr
	tls       *tls.Config
	work      job
}

func (c *client) dial() (*quic.Conn, error) {
	return c.transport.Dial(context.Background(), c.to, c.tls, config(c.work))
}

func connect(work job, to string, authority []byte) (*report, error) {
	address, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		return nil, err
	}
	settings, err := clientTLS(work, authority)
	if err != nil {
		return nil, err
	}
	transport, granted, err := open("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer transport.Close()
	one := &client{transport, address, settings, work}
	var result *report
	switch work.mode {
	case "bulk", "bulk-streams", "bulk-connections":
		result, err = one.sendBulk()
	case "hs", "hsr":
		result, err = one.handshakes()
	case "rr":
		result, err = one.requests()
	case "dgram":
		result, err = one.datagrams()
	case "idle":
		result, err = one.idle()
	default:
		err = fmt.Errorf("unknown mode %q", work.mode)
	}
	if err != nil {
		return nil, err
	}
	result.SocketBuffer = &granted
	return result, nil
}

// ask sends a request on a new stream and compares the answer.
func ask(connection *quic.Conn, request, response []byte) error {
	stream, err := connection.OpenStreamSync(context.Background())
	if err != nil {
		return err
	}
	if _, err := stream.Write(request); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	answered, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	if !bytes.Equal(answered, response) {
		return errors.New("the server's answer is wrong")
	}
	return nil
}

// each runs work that many times at the same time, and returns the first error.
func each(count int64, run func() error) error {
	results := make(chan error, count)
	for range count {
		go func() { results <- run() }()
	}
	var first error
	for range count {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (c *client) sendBulk() (*report, error) {
	var connections []*quic.Conn
	for range c.work.connections {
		connection, err := c.dial()
		if err != nil {
			return nil, err
		}
		connections = append(connections, connection)
	}
	var next atomic.Int64
	measured := startMeter()
	err := each(c.work.connections*c.work.streams, func() error {
		connection := connections[(next.Add(1)-1)%c.work.connections]
		return sendStream(connection, c.work.bytesPerStream())
	})
	if err != nil {
		return nil, err
	}
	measured.stop()
	for _, connection := range connections {
		if err := connection.CloseWithError(0, "done"); err != nil {
			return nil, err
		}
	}
	return measured.report("client", c.work.bytesPerStream()*c.work.streams*c.work.connections), nil
}

func sendStream(connection *quic.Conn, total int64) error {
	stream, err := connection.OpenStreamSync(context.Background())
	if err != nil {
		return err
	}
	for sent := int64(0); sent < total; {
		n, err := stream.Write(contentAt(sent, total-sent))
		if err != nil {
			return err
		}
		sent += int64(n)
	}
	if err := stream.Close(); err != nil {
		return err
	}
	answered, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	if string(answered) != "received" {
		return errors.New("the server's answer is wrong")
	}
	return nil
}

func (c *client) handshakes() (*report, error) {
	measured := startMeter()
	var resumed, early int64
	for number := range handshakesBefore + c.work.amount {
		if number == handshakesBefore {
			measured, resumed, early = startMeter(), 0, 0
		}
		dial := c.transport.Dial
		if c.work.resumes() {
			dial = c.transport.DialEarly
		}
		connection, err := dial(context.Background(), c.to, c.tls, config(c.work))
		if err != nil {
			return nil, err
		}
		if err := ask(connection, []byte("?"), []byte("!")); err != nil {
			return nil, err
		}
		state := connection.ConnectionState()
		if state.TLS.DidResume {
			resumed++
		}
		if state.Used0RTT {
			early++
		}
		if err := connection.CloseWithError(0, "done"); err != nil {
			return nil, err
		}
	}
	measured.stop()
	result := measured.report("client", c.work.amount)
	result.Resumed = &resumed
	if c.work.resumes() {
		result.Early = &early
	}
	return result, nil
}

func (c *client) requests() (*report, error) {
	connection, err := c.dial()
	if err != nil {
		return nil, err
	}
	request, response := contentAt(0, requestSize), contentAt(0, responseSize)
	var started atomic.Int64
	measured := startMeter()
	err = each(concurrent, func() error {
		for started.Add(1) <= c.work.amount {
			if err := ask(connection, request, response); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	measured.stop()
	result := measured.report("client", c.work.amount)
	result.ContentSamples = c.work.amount
	return result, connection.CloseWithError(0, "done")
}

// toDrain is the time for the last datagrams to leave the queue.
const toDrain = 100 * time.Millisecond

func (c *client) datagrams() (*report, error) {
	connection, err := c.dial()
	if err != nil {
		return nil, err
	}
	payload := contentAt(0, datagramSize)
	time.Sleep(toDrain)
	measured := startMeter()
	for range c.work.amount {
		// Waits while the queue is full.
		if err := connection.SendDatagram(payload); err != nil {
			return nil, err
		}
	}
	time.Sleep(toDrain)
	measured.stop()
	stream, err := connection.OpenStreamSync(context.Background())
	if err != nil {
		return nil, err
	}
	if _, err := stream.Write(binary.BigEndian.AppendUint64(nil, uint64(c.work.amount))); err != nil {
		return nil, err
	}
	if err := stream.Close(); err != nil {
		return nil, err
	}
	if _, err := io.ReadAll(stream); err != nil {
		return nil, err
	}
	return measured.report("client", c.work.amount), connection.CloseWithError(0, "done")
}

func (c *client) idle() (*report, error) {
	var connections []*quic.Conn
	measured := startMeter()
	for number := range idleBefore + c.work.amount {
		if number == idleBefore {
			measured = startMeter()
		}
		connection, err := c.dial()
		if err != nil {
			return nil, err
		}
		if err := ask(connection, []byte("?"), []byte("!")); err != nil {
			return nil, err
		}
		connections = append(connections, connection)
	}
	measured.stop()
	for _, connection := range connections {
		if err := connection.CloseWithError(0, "done"); err != nil {
			return nil, err
		}
	}
	return measured.report("client", c.work.amount), nil
}
