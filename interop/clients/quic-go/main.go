// Loads the objects of a page with quic-go's HTTP/3 client, over one connection. Prints how many came over HTTP/3 as they should.
//
//	quic-go-h3 ROOT_CERTIFICATE BASE_URL COUNT BYTES
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go/http3"
)

func main() {
	pem, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		log.Fatal("there is no certificate in the file")
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	size, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.Close()
	client := &http.Client{Transport: transport}
	var good atomic.Int64
	var all sync.WaitGroup
	for number := range count {
		all.Go(func() {
			response, err := client.Get(fmt.Sprintf("%s/object/%d", os.Args[2], number))
			if err != nil {
				log.Print(err)
				return
			}
			defer response.Body.Close()
			length, err := io.Copy(io.Discard, response.Body)
			if err == nil && response.StatusCode == 200 && response.ProtoMajor == 3 && length == size {
				good.Add(1)
			} else {
				log.Print(response.Status, response.Proto, length, err)
			}
		})
	}
	all.Wait()
	fmt.Println(good.Load())
}
