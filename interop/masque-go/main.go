// Speaks CONNECT-UDP by masque-go, in either role.
//
//	masque-go client ROOT_CERTIFICATE TEMPLATE TARGET TOKEN   payloads to an echo and back, of which it prints the sizes
//	masque-go server CERTIFICATE KEY TEMPLATE ADDRESS         a proxy, until it is killed
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/masque-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
)

func main() {
	arguments := os.Args[2:]
	if os.Args[1] == "server" {
		server(arguments[0], arguments[1], arguments[2], arguments[3])
	} else {
		client(arguments[0], arguments[1], arguments[2], arguments[3])
	}
}

func client(root, template, target, token string) {
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
	request, err := masque.NewRequest(ctx, uritemplate.MustNew(template), target)
	if err != nil {
		log.Fatal(err)
	}
	request.Header().Set("Authorization", "Bearer "+token)
	transport := masque.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}}
	tunnel, response, err := transport.Dial(request)
	if err != nil {
		status := 0
		if response != nil {
			status = response.StatusCode
		}
		log.Fatalf("no tunnel: status %d: %v", status, err)
	}
	defer tunnel.Close()
	buffer := make([]byte, 2000)
	for _, size := range []int{0, 1, 512, 1200} {
		payload := bytes.Repeat([]byte{byte(size)}, size)
		// A datagram may be lost.
		for attempt := 0; ; attempt++ {
			if attempt == 60 {
				log.Fatalf("%d bytes do not come back", size)
			}
			if _, err := tunnel.WriteTo(payload, nil); err != nil {
				log.Fatal(err)
			}
			tunnel.SetReadDeadline(time.Now().Add(time.Second))
			length, _, err := tunnel.ReadFrom(buffer)
			if err == nil && bytes.Equal(buffer[:length], payload) {
				break
			}
		}
		fmt.Println(size)
	}
}

func server(certificate, key, template, address string) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		log.Fatal(err)
	}
	parsed := uritemplate.MustNew(template)
	var proxy masque.Proxy
	handler := func(w http.ResponseWriter, r *http.Request) {
		request, err := masque.ParseProxyRequest(r, parsed)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if err := proxy.Proxy(w, request); err != nil {
			log.Print(err)
		}
	}
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		log.Fatal(err)
	}
	server := http3.Server{
		Handler:         http.HandlerFunc(handler),
		TLSConfig:       http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		EnableDatagrams: true,
	}
	log.Fatal(server.Serve(socket))
}
