// The mode `franz secure`: franz-go on secured listeners. One JSON request a line on standard input, answered by one
// JSON line on standard output. It judges nothing; what the operations are and what they answer is written down once,
// in suite/security/clients.py. Every operation makes a client of its own with the settings that the request gives.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	saslplain "github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Where no code of Kafka's says what went wrong.
const (
	codeOther  = -1
	codeTLS    = -2
	codeClosed = -3
)

const streamPause = 20 * time.Millisecond

type connection struct {
	Bootstrap   string `json:"bootstrap"`
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
}

type secureRequest struct {
	ID              int64      `json:"id"`
	Op              string     `json:"op"`
	Connect         connection `json:"connect"`
	Topic           string     `json:"topic"`
	Group           string     `json:"group"`
	Name            string     `json:"name"`
	Values          []string   `json:"values"`
	Count           int        `json:"count"`
	TransactionalID string     `json:"transactional_id"`
	Seconds         int        `json:"seconds"`
}

type secureWorker struct {
	lock    sync.Mutex
	streams map[string]*secureStream
}

func secure() {
	w := &secureWorker{streams: map[string]*secureStream{}}
	var output sync.Mutex
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // standard input has ended: the suite is done with this worker
		}
		go func() {
			answer := w.answer(line)
			output.Lock()
			defer output.Unlock()
			os.Stdout.Write(append(answer, '\n'))
		}()
	}
}

func (w *secureWorker) answer(line []byte) []byte {
	r := secureRequest{Seconds: 8}
	answer := map[string]any{}
	err := json.Unmarshal(line, &r)
	answer["id"] = r.ID
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.Seconds)*time.Second)
		answer["result"], err = w.serve(ctx, &r)
		cancel()
	}
	if err != nil {
		answer["error"], answer["code"] = err.Error(), codeOf(err)
	}
	text, err := json.Marshal(answer)
	if err != nil {
		text = fmt.Appendf(nil, `{"id":%d,"error":%q,"code":-1}`, r.ID, err.Error())
	}
	return text
}

func codeOf(err error) int {
	var kafka *kerr.Error
	var header tls.RecordHeaderError
	var unsupported *kgo.ErrFirstReadEOF
	var network net.Error
	switch {
	case errors.As(err, &kafka):
		return int(kafka.Code)
	case strings.Contains(err.Error(), "x509: "), strings.Contains(err.Error(), "tls: "), errors.As(err, &header):
		return codeTLS
	// An alert of TLS, which a client without it takes for a length.
	case strings.Contains(err.Error(), "invalid large response size"):
		return codeClosed
	case strings.Contains(err.Error(), "unexpected data in oauth response"):
		// It does not wait for the code that comes after the words.
		return int(kerr.SaslAuthenticationFailed.Code)
	case errors.As(err, &unsupported), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, kgo.ErrClientClosed), errors.Is(err, net.ErrClosed), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &network):
		return codeClosed
	}
	return codeOther
}

func (w *secureWorker) serve(ctx context.Context, r *secureRequest) (any, error) {
	switch r.Op {
	case "probe":
		return with(r, nil, func(client *kgo.Client) (any, error) { return nil, client.Ping(ctx) })
	case "topics":
		return with(r, nil, func(client *kgo.Client) (any, error) {
			topics, err := kadm.NewClient(client).ListTopics(ctx)
			return topics.Names(), err
		})
	case "create_topic":
		return with(r, nil, func(client *kgo.Client) (any, error) {
			created, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, r.Topic)
			return nil, first(err, created.Err)
		})
	case "produce":
		return secureProduce(ctx, r)
	case "consume":
		return secureConsume(ctx, r)
	case "stream":
		return nil, w.stream(r)
	case "state":
		return w.named(r.Name).state(), nil
	case "stop":
		return w.stop(ctx, r.Name), nil
	}
	return nil, fmt.Errorf("no such operation: %s", r.Op)
}

func with(r *secureRequest, more []kgo.Opt, do func(*kgo.Client) (any, error)) (any, error) {
	client, err := secureClient(&r.Connect, more...)
	if err != nil {
		return nil, err
	}
	defer client.CloseAllowingRebalance()
	return do(client)
}

func secureClient(c *connection, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap), kgo.RequestRetries(2), kgo.RetryTimeout(4 * time.Second)}
	if strings.HasSuffix(c.Protocol, "SSL") {
		config, err := c.tls()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if strings.HasPrefix(c.Protocol, "SASL") {
		scramAuth := scram.Auth{User: c.User, Pass: c.Password}
		switch c.Mechanism {
		case "PLAIN":
			options = append(options, kgo.SASL(saslplain.Auth{User: c.User, Pass: c.Password}.AsMechanism()))
		case "SCRAM-SHA-256":
			options = append(options, kgo.SASL(scramAuth.AsSha256Mechanism()))
		case "SCRAM-SHA-512":
			options = append(options, kgo.SASL(scramAuth.AsSha512Mechanism()))
		case "OAUTHBEARER":
			options = append(options, kgo.SASL(oauth.Auth{Token: c.Token}.AsMechanism()))
		default:
			return nil, fmt.Errorf("no such mechanism: %s", c.Mechanism)
		}
	}
	return kgo.NewClient(append(options, more...)...)
}

func (c *connection) tls() (*tls.Config, error) {
	config := &tls.Config{}
	if c.Authority != "" {
		text, err := os.ReadFile(c.Authority)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(text)
	}
	if c.Certificate != "" {
		own, err := tls.LoadX509KeyPair(c.Certificate, c.Certificate)
		if err != nil {
			return nil, err
		}
		// Certificates alone would be left out where the server names another authority.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return config, nil
}

func secureProduce(ctx context.Context, r *secureRequest) (any, error) {
	options := []kgo.Opt{kgo.DefaultProduceTopic(r.Topic), kgo.ProducerLinger(0), kgo.UnknownTopicRetries(1)}
	if r.TransactionalID != "" {
		options = append(options, kgo.TransactionalID(r.TransactionalID))
	}
	return with(r, options, func(client *kgo.Client) (any, error) {
		if r.TransactionalID != "" {
			if err := client.BeginTransaction(); err != nil {
				return nil, err
			}
		}
		offsets := []int64{}
		for _, value := range r.Values {
			done, err := client.ProduceSync(ctx, kgo.StringRecord(value)).First()
			if err != nil {
				return nil, err
			}
			offsets = append(offsets, done.Offset)
		}
		if r.TransactionalID != "" {
			return offsets, client.EndTransaction(ctx, kgo.TryCommit)
		}
		return offsets, nil
	})
}

func secureConsume(ctx context.Context, r *secureRequest) (any, error) {
	options := []kgo.Opt{
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if r.Group != "" {
		options = append(options, kgo.ConsumerGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.DisableAutoCommit())
	} else {
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			r.Topic: {0: kgo.NewOffset().AtStart()},
		}))
	}
	return with(r, options, func(client *kgo.Client) (any, error) {
		values := []string{}
		for len(values) < r.Count {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return nil, err
			}
			fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
		}
		if r.Group != "" {
			return values, client.CommitUncommittedOffsets(ctx)
		}
		return values, nil
	})
}

// secureStream is a producer that goes on until it is told to stop.
type secureStream struct {
	client             *kgo.Client
	cancel             context.CancelFunc
	done               chan struct{}
	lock               sync.Mutex
	sent, acknowledged int
	errors             []any
}

func (w *secureWorker) stream(r *secureRequest) error {
	client, err := secureClient(&r.Connect, kgo.DefaultProduceTopic(r.Topic), kgo.ProducerLinger(0),
		kgo.RecordDeliveryTimeout(8*time.Second), kgo.UnknownTopicRetries(1))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &secureStream{client: client, cancel: cancel, done: make(chan struct{}), errors: []any{}}
	w.lock.Lock()
	w.streams[r.Name] = s
	w.lock.Unlock()
	go s.run(ctx)
	return nil
}

func (s *secureStream) run(ctx context.Context) {
	defer close(s.done)
	for number := 0; ctx.Err() == nil; number++ {
		s.client.Produce(context.Background(), kgo.StringRecord(fmt.Sprint(number)), func(_ *kgo.Record, err error) {
			s.lock.Lock()
			defer s.lock.Unlock()
			if err == nil {
				s.acknowledged++
			} else {
				s.errors = append(s.errors, []any{codeOf(err), err.Error()})
			}
		})
		s.lock.Lock()
		s.sent++
		s.lock.Unlock()
		time.Sleep(streamPause)
	}
}

func (s *secureStream) state() any {
	s.lock.Lock()
	defer s.lock.Unlock()
	return map[string]any{"sent": s.sent, "acknowledged": s.acknowledged, "errors": append([]any{}, s.errors...)}
}

func (w *secureWorker) named(name string) *secureStream {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.streams[name]
}

func (w *secureWorker) stop(ctx context.Context, name string) any {
	s := w.named(name)
	s.cancel()
	<-s.done
	// What is not delivered by then is missing among the acknowledged.
	_ = s.client.Flush(ctx)
	s.client.Close()
	return s.state()
}
