package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
)

// Streams of each kind that each end opens, datagrams of the client, and bytes of a stream at most.
const (
	streams   = 25
	datagrams = 1000
	maxBytes  = 1_000_000
)

// Kinds of a stream's direction, its first byte.
const (
	ask byte = iota + 1
	answer
	serverAsk
	clientAnswer
	up
	down
	complete
	pleaseClose
)

// Application protocols that a client offers, and the one that a server has.
var (
	offered = []string{"sessions-2", "sessions-1"}
	served  = []string{"sessions-1"}
)

const period = 65_521

var pattern = func() []byte {
	state := uint32(1)
	once := make([]byte, period)
	for at := range once {
		state = (state*1_103_515_245 + 12_345) & 0x7fff_ffff
		once[at] = byte(state >> 16)
	}
	return bytes.Repeat(once, maxBytes/period+2)
}()

func patternOf(kind, index uint32, length int) []byte {
	begin := int((uint64(kind)*7_919 + uint64(index)*1_009) % period)
	return pattern[begin : begin+length]
}

// content is what a direction of a stream carries: its kind, its number, and bytes of the pattern.
func content(kind byte, index uint32) []byte {
	length := int(index) * int(index) * 97
	switch {
	case kind == complete || kind == pleaseClose:
		length = 0
	case index == streams-1:
		length = 500_000
	}
	header := binary.BigEndian.AppendUint32([]byte{kind}, index)
	return append(header, patternOf(uint32(kind), index, length)...)
}

func datagram(index uint32) []byte {
	return append(binary.BigEndian.AppendUint32(nil, index), patternOf(9, index, int(index)%1000)...)
}

type closeReport struct {
	Code   *uint32 `json:"code"`
	Reason string  `json:"reason"`
	How    string  `json:"how"`
}

// report is what a peer prints of a session.
type report struct {
	Path      string      `json:"path"`
	Streams   int         `json:"streams"`
	Bytes     int         `json:"bytes"`
	Datagrams int         `json:"datagrams"`
	Resent    int         `json:"resent"`
	Close     closeReport `json:"close"`
	Draft     *string     `json:"draft"`
	Protocol  string      `json:"protocol"`
	Error     *string     `json:"error"`
}

func (r *report) print() {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// tally is what has come of a session.
type tally struct {
	mutex   sync.Mutex
	changed *sync.Cond
	report  report
	seen    map[[2]uint32]bool
}

func newTally(path string) *tally {
	t := &tally{report: report{Path: path}, seen: map[[2]uint32]bool{}}
	t.changed = sync.NewCond(&t.mutex)
	return t
}

// check compares what came on a stream with what had to come, and returns the number of the stream.
func (t *tally) check(kind byte, got []byte) (uint32, error) {
	if len(got) < 5 || got[0] != kind {
		return 0, fmt.Errorf("%d bytes came that are no stream of kind %d", len(got), kind)
	}
	index := binary.BigEndian.Uint32(got[1:])
	if index >= streams || !bytes.Equal(got, content(kind, index)) {
		return 0, fmt.Errorf("stream %d of kind %d differs", index, kind)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	place := [2]uint32{uint32(kind), index}
	if t.seen[place] {
		return 0, fmt.Errorf("stream %d of kind %d came twice", index, kind)
	}
	t.seen[place] = true
	t.report.Streams++
	t.report.Bytes += len(got)
	t.changed.Broadcast()
	return index, nil
}

// note keeps the first thing that was wrong.
func (t *tally) note(what string, err error) {
	if err == nil {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.report.Error == nil {
		text := what + ": " + err.Error()
		t.report.Error = &text
	}
	t.changed.Broadcast()
}

// reaches waits until this many directions have come, or something is wrong.
func (t *tally) reaches(count int) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for t.report.Error == nil && t.report.Streams < count {
		t.changed.Wait()
	}
	return t.report.Error == nil
}
