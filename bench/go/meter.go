package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is what a side prints when it is done: SideReport in src/meter.rs.
type report struct {
	Role           string  `json:"role"`
	Units          int64   `json:"units"`
	CPU            int64   `json:"cpu_ns"`
	User           int64   `json:"user_ns"`
	System         int64   `json:"system_ns"`
	Wall           int64   `json:"wall_ns"`
	ProcessCPU     int64   `json:"process_cpu_ns"`
	ContentSamples int64   `json:"content_samples"`
	SocketBuffer   *uint64 `json:"socket_buffer"`
	Signatures     *int64  `json:"signatures"`
	Resumed        *int64  `json:"resumed"`
	Early          *int64  `json:"early"`
	MemoryGrowth   *int64  `json:"memory_growth"`
}

// reading is what the clocks say.
type reading struct {
	at                time.Time
	cpu, user, system int64
}

func read() reading {
	var cpu unix.Timespec
	var usage unix.Rusage
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpu); err != nil {
		panic(err)
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return reading{time.Now(), cpu.Nano(), usage.Utime.Nano(), usage.Stime.Nano()}
}

// meter reads the clocks when the work begins and when it is done.
type meter struct{ first, last reading }

func startMeter() *meter {
	now := read()
	return &meter{now, now}
}

func (m *meter) stop() { m.last = read() }

func (m *meter) report(role string, units int64) *report {
	return &report{
		Role:       role,
		Units:      units,
		CPU:        m.last.cpu - m.first.cpu,
		User:       m.last.user - m.first.user,
		System:     m.last.system - m.first.system,
		Wall:       m.last.at.Sub(m.first.at).Nanoseconds(),
		ProcessCPU: read().cpu,
	}
}

// residentBytes is the memory of this process without what the garbage collector could give back.
func residentBytes() (int64, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib * 1024, nil
		}
	}
	return 0, fmt.Errorf("no VmRSS")
}
