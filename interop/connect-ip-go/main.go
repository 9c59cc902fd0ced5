// Speaks CONNECT-IP by connect-ip-go, in either role, with a TUN device. It needs a network namespace of its own, and ip(8).
//
//	connect-ip-go client ROOT_CERTIFICATE TEMPLATE TOKEN DEVICE   a tunnel; prints `open` and the addresses, then carries packets
//	connect-ip-go server CERTIFICATE KEY TEMPLATE ADDRESS DEVICE  a proxy for one client at a time, until it is killed
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	connectip "github.com/quic-go/connect-ip-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
	"golang.org/x/sys/unix"
)

// Addresses of the only client of the proxy.
var assigned = []netip.Prefix{netip.MustParsePrefix("10.88.0.2/32"), netip.MustParsePrefix("fd00:88::2/128")}

// A packet of 1,280 bytes fits into a QUIC datagram from the first one on.
var config = &quic.Config{EnableDatagrams: true, InitialPacketSize: 1350}

func main() {
	arguments := os.Args[2:]
	if os.Args[1] == "server" {
		server(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4])
	} else {
		client(arguments[0], arguments[1], arguments[2], arguments[3])
	}
}

func ip(arguments ...string) {
	if output, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
		log.Fatalf("ip %s: %v: %s", strings.Join(arguments, " "), err, output)
	}
}

// Makes a TUN device, which is up.
func device(name string, mtu int) *os.File {
	descriptor, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		log.Fatal(err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		log.Fatal(err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(descriptor, unix.TUNSETIFF, request); err != nil {
		log.Fatal(err)
	}
	if err := unix.SetNonblock(descriptor, true); err != nil {
		log.Fatal(err)
	}
	ip("link", "set", name, "mtu", strconv.Itoa(mtu), "up")
	return os.NewFile(uintptr(descriptor), name)
}

// Carries packets both ways, until the connection or the device ends.
func carry(tun *os.File, connection *connectip.Conn) {
	go func() {
		defer connection.Close()
		packet := make([]byte, 65_575)
		for {
			length, err := tun.Read(packet)
			if err != nil {
				return
			}
			report, err := connection.WritePacket(packet[:length])
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue
			}
			if len(report) > 0 {
				tun.Write(report)
			}
		}
	}()
	packet := make([]byte, 65_575)
	for {
		length, err := connection.ReadPacket(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		tun.Write(packet[:length])
	}
}

func client(root, template, token, name string) {
	pem, err := os.ReadFile(root)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatal("there is no certificate in the file")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request, err := connectip.NewRequest(ctx, uritemplate.MustNew(template))
	if err != nil {
		log.Fatal(err)
	}
	request.Header().Set("Authorization", "Bearer "+token)
	tls := &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}
	transport := connectip.Transport{TLSClientConfig: tls, QUICConfig: config}
	connection, response, err := transport.Dial(request)
	if err != nil {
		status := 0
		if response != nil {
			status = response.StatusCode
		}
		log.Fatalf("no tunnel: status %d: %v", status, err)
	}
	defer connection.Close()
	requested := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("::/128")}
	if _, err := connection.RequestAddresses(requested); err != nil {
		log.Fatal(err)
	}
	// The first assignment comes unasked, and the next one answers the request.
	var own []connectip.AssignedAddress
	for answered := false; !answered; {
		if own, err = connection.ReceiveAddressAssignment(ctx); err != nil {
			log.Fatal(err)
		}
		answered = own[0].RequestID != 0
	}
	routes, err := connection.Routes(ctx)
	if err != nil {
		log.Fatal(err)
	}
	tun := device(name, 1500)
	texts := []string{}
	for _, address := range own {
		if address.Rejected() {
			log.Fatalf("the request %d is refused", address.RequestID)
		}
		ip("address", "add", address.IPPrefix.String(), "dev", name)
		texts = append(texts, address.IPPrefix.String())
	}
	for _, route := range routes {
		for _, prefix := range route.Prefixes() {
			ip("route", "add", prefix.String(), "dev", name)
		}
	}
	fmt.Println("open", strings.Join(texts, " "))
	carry(tun, connection)
}

func server(certificate, key, template, address, name string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	parsed := uritemplate.MustNew(template)
	tun := device(name, 1500)
	ip("address", "add", "10.88.0.1/24", "dev", name)
	ip("address", "add", "fd00:88::1/64", "dev", name, "nodad")
	var proxy connectip.Proxy
	handler := http.NewServeMux()
	handler.HandleFunc("/vpn", func(w http.ResponseWriter, r *http.Request) {
		request, err := connectip.ParseProxyRequest(r, parsed)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		connection, err := proxy.Proxy(w, request)
		if err != nil {
			log.Print(err)
			return
		}
		defer connection.Close()
		requested, err := connection.ReceiveAddressRequest(r.Context())
		if err != nil {
			log.Print(err)
			return
		}
		// In the order of the request.
		answer := make([]netip.Prefix, len(requested.Prefixes))
		for number, wanted := range requested.Prefixes {
			for _, prefix := range assigned {
				if prefix.Addr().Is4() == wanted.Addr().Is4() {
					answer[number] = prefix
				}
			}
		}
		if err := requested.Respond(answer, nil); err != nil {
			log.Print(err)
			return
		}
		everywhere := []connectip.IPRoute{
			{StartIP: netip.MustParseAddr("0.0.0.0"), EndIP: netip.MustParseAddr("255.255.255.255")},
			{StartIP: netip.MustParseAddr("::"), EndIP: netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")},
		}
		if err := connection.AdvertiseRoute(everywhere); err != nil {
			log.Print(err)
			return
		}
		carry(tun, connection)
	})
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		log.Fatal(err)
	}
	server := http3.Server{
		Handler:         handler,
		TLSConfig:       http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		QUICConfig:      config,
		EnableDatagrams: true,
	}
	fmt.Println("listening", socket.LocalAddr())
	log.Fatal(server.Serve(socket))
}
