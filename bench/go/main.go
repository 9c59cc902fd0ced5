// The contender quic-go: both sides of every mode, with the command line and the output of the other contenders
// (src/peers/mod.rs). `bench` builds it when it is needed, chooses the CPU, and becomes it.
package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// The settings and amounts of src/stack.rs and src/job.rs.
const (
	udpPayload       = 1452
	socketBuffer     = 8 << 20
	streamWindow     = 16 << 20
	connectionWindow = 64 << 20
	idleTimeout      = 120 * time.Second

	requestSize      = 100
	responseSize     = 1024
	concurrent       = 100
	datagramSize     = 1200
	handshakesBefore = 20
	idleBefore       = 50
)

// job is the work of one run.
type job struct {
	mode        string
	amount      int64
	connections int64
	streams     int64
}

func (j job) bytesPerStream() int64 { return j.amount / (j.connections * j.streams) }
func (j job) resumes() bool         { return j.mode == "hsr" }

// streamsAllowed is how many streams the peer may have open at the same time.
func (j job) streamsAllowed() int64 {
	if j.mode == "idle" {
		return 100
	}
	return 1000
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
}

func run(arguments []string) error {
	flags := flag.NewFlagSet("quic-go", flag.ContinueOnError)
	mode := flags.String("mode", "bulk", "what is done")
	amount := flags.Int64("amount", 1<<30, "how much of it")
	timeLimit := flags.Int("time-limit", 600, "end after this many seconds")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	time.AfterFunc(time.Duration(*timeLimit)*time.Second, func() {
		fmt.Fprintln(os.Stderr, "error: out of time")
		os.Exit(3)
	})
	work := job{mode: *mode, amount: *amount, connections: 1, streams: 1}
	switch *mode {
	case "bulk-streams":
		work.streams = 100
	case "bulk-connections":
		work.connections = 50
	}
	rest := flags.Args()
	if len(rest) == 0 {
		return errors.New("server or client?")
	}
	side := flag.NewFlagSet(rest[0], flag.ContinueOnError)
	listen := side.String("listen", "127.0.0.1:0", "where to listen")
	to := side.String("to", "", "the address the server announced")
	trust := side.String("trust", "", "the certificate the server announced")
	if err := side.Parse(rest[1:]); err != nil {
		return err
	}
	var result *report
	var err error
	switch rest[0] {
	case "server":
		result, err = serve(work, *listen)
	case "client":
		var authority []byte
		if authority, err = hex.DecodeString(*trust); err == nil {
			result, err = connect(work, *to, authority)
		}
	default:
		err = fmt.Errorf("%q is neither server nor client", rest[0])
	}
	if err != nil {
		return err
	}
	return printLine(result)
}

// announce tells where the server is and what the client must trust.
func announce(address string, authority []byte) error {
	return printLine(map[string]string{"address": address, "trust": hex.EncodeToString(authority)})
}

func printLine(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(line))
	return err
}
