package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// The stream of src/content.rs: a block of pseudo-random bytes, repeated; its length is prime.
const (
	period      = 262_139
	sampleEvery = 65_536
	sampleLen   = 32
)

// block holds the repeated bytes twice in a row.
var block = func() []byte {
	state := uint64(0x9E3779B97F4A7C15)
	var out []byte
	for len(out) < period {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		out = binary.LittleEndian.AppendUint64(out, state)
	}
	out = out[:period]
	return append(out, out...)
}()

// contentAt returns up to a period of the stream's bytes from offset.
func contentAt(offset, length int64) []byte {
	phase := offset % period
	return block[phase : phase+min(length, period)]
}

// check counts what arrives and compares samples of it.
type check struct{ bytes, nextSample, samples int64 }

func (c *check) take(data []byte) error {
	start := c.bytes
	c.bytes += int64(len(data))
	for c.nextSample < c.bytes {
		from := max(c.nextSample-start, 0)
		seen := data[from:min(int64(len(data)), from+sampleLen)]
		if !bytes.Equal(seen, contentAt(start+from, int64(len(seen)))) {
			return fmt.Errorf("wrong bytes at offset %d of the stream", start+from)
		}
		c.samples++
		c.nextSample += sampleEvery
	}
	return nil
}
