// The franz-go worker of the compatibility suite: driven by one JSON request a line on standard
// input, answered by one JSON line on standard output.
//
// It knows no test case and judges nothing. What the operations are and what they answer is written
// down once, in suite/worker.py. Requests are served each in a goroutine of its own, so that a group
// can rebalance while a producer runs.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const requestTimeout = 15 * time.Second

// record is one record as JSON carries it: bytes as base64, a missing key or value as null.
type record struct {
	Partition *int32   `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"`
	Key       *[]byte  `json:"key"`
	Value     *[]byte  `json:"value"`
	Headers   []header `json:"headers"`
}

// header is [name, value].
type header struct {
	name  string
	value *[]byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.name, h.value}) }

func (h *header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.name, &h.value})
}

// request holds the arguments of every operation; each uses a few.
type request struct {
	ID         int64              `json:"id"`
	Op         string             `json:"op"`
	Topic      string             `json:"topic"`
	Group      string             `json:"group"`
	Member     string             `json:"member"`
	Assignor   string             `json:"assignor"`
	InstanceID string             `json:"instance_id"`
	Total      int                `json:"total"`
	Configs    map[string]string  `json:"configs"`
	Set        map[string]string  `json:"set"`
	Unset      []string           `json:"unset"`
	Records    []record           `json:"records"`
	Codec      string             `json:"codec"`
	Acks       string             `json:"acks"`
	Idempotent bool               `json:"idempotent"`
	LingerMS   int64              `json:"linger_ms"`
	PauseMS    int64              `json:"pause_ms"`
	Ends       map[int32]int64    `json:"ends"`
	Passes     []map[int32]int64  `json:"passes"`
	At         any                `json:"at"`
	Offsets    map[int32]position `json:"offsets"`
	Partitions json.RawMessage    `json:"partitions"` // a count or a list
}

// position is [offset, metadata].
type position struct {
	offset   int64
	metadata string
}

func (p *position) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&p.offset, &p.metadata})
}

type worker struct {
	bootstrap string
	admin     *kadm.Client
	lock      sync.Mutex
	members   map[string]*member
}

func main() {
	if os.Args[1] == "raw" {
		raw()
		return
	}
	if os.Args[1] == "secure" {
		secure()
		return
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ClientID("compat-franz-admin"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	w := &worker{bootstrap: os.Args[1], admin: kadm.NewClient(client), members: map[string]*member{}}
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

func (w *worker) answer(line []byte) []byte {
	var r request
	answer := map[string]any{}
	err := json.Unmarshal(line, &r)
	answer["id"] = r.ID
	if err == nil {
		answer["result"], err = w.serve(&r)
	}
	if err != nil {
		code := int16(-1)
		var kafka *kerr.Error
		if errors.As(err, &kafka) {
			code = kafka.Code
		}
		answer["error"], answer["code"] = err.Error(), code
	}
	text, err := json.Marshal(answer)
	if err != nil {
		text = fmt.Appendf(nil, `{"id":%d,"error":%q,"code":-1}`, r.ID, err.Error())
	}
	return text
}

func (w *worker) serve(r *request) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	switch r.Op {
	case "cluster":
		return w.cluster(ctx)
	case "create_topic":
		return nil, w.createTopic(ctx, r)
	case "topics":
		found, err := w.admin.ListTopics(ctx)
		return found.Names(), err
	case "describe_topic":
		return w.describeTopic(ctx, r)
	case "create_partitions":
		done, err := w.admin.UpdatePartitions(ctx, r.Total, r.Topic)
		return nil, first(err, done.Error())
	case "delete_topic":
		done, err := w.admin.DeleteTopic(ctx, r.Topic)
		return nil, first(err, done.Err)
	case "set_config":
		return nil, w.setConfig(ctx, r)
	case "configs":
		return w.configs(ctx, r)
	case "produce":
		return w.produce(r)
	case "read":
		return w.read(r)
	case "list_offsets":
		return w.listOffsets(ctx, r)
	case "commit":
		return nil, w.commit(ctx, r)
	case "committed":
		return w.committed(ctx, r)
	case "delete_offsets":
		return nil, w.deleteOffsets(ctx, r)
	case "groups":
		found, err := w.admin.ListGroups(ctx)
		return found.Groups(), err
	case "describe_group":
		return w.describeGroup(ctx, r)
	case "delete_group":
		done, err := w.admin.DeleteGroup(ctx, r.Group)
		return nil, first(err, done.Err)
	case "join":
		return nil, w.join(r)
	case "members":
		return w.memberStates(), nil
	case "leave":
		return w.leave(r)
	}
	return nil, fmt.Errorf("no such operation: %s", r.Op)
}

func first(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// Topics and the cluster

func (w *worker) cluster(ctx context.Context) (any, error) {
	found, err := w.admin.BrokerMetadata(ctx)
	brokers := []any{}
	for _, b := range found.Brokers {
		brokers = append(brokers, map[string]any{"id": b.NodeID, "address": fmt.Sprintf("%s:%d", b.Host, b.Port)})
	}
	return map[string]any{"cluster_id": found.Cluster, "controller": found.Controller, "brokers": brokers}, err
}

func (w *worker) createTopic(ctx context.Context, r *request) error {
	var partitions int32
	if err := json.Unmarshal(r.Partitions, &partitions); err != nil {
		return err
	}
	configs := map[string]*string{}
	for name, value := range r.Configs {
		configs[name] = &value
	}
	done, err := w.admin.CreateTopic(ctx, partitions, 1, configs, r.Topic)
	return first(err, done.Err)
}

func (w *worker) describeTopic(ctx context.Context, r *request) (any, error) {
	found, err := w.admin.ListTopics(ctx, r.Topic)
	if err = first(err, found[r.Topic].Err); err != nil {
		return nil, err
	}
	partitions := []any{}
	for _, p := range found[r.Topic].Partitions.Sorted() {
		partitions = append(partitions, map[string]any{
			"partition": p.Partition, "leader": p.Leader, "replicas": len(p.Replicas), "isr": len(p.ISR),
		})
	}
	return partitions, nil
}

func (w *worker) setConfig(ctx context.Context, r *request) error {
	var changes []kadm.AlterConfig
	for name, value := range r.Set {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	for _, name := range r.Unset {
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	done, err := w.admin.AlterTopicConfigs(ctx, changes, r.Topic)
	if err != nil {
		return err
	}
	return done[0].Err
}

func (w *worker) configs(ctx context.Context, r *request) (any, error) {
	found, err := w.admin.DescribeTopicConfigs(ctx, r.Topic)
	if err != nil {
		return nil, err
	}
	result := map[string]any{}
	for _, c := range found[0].Configs {
		result[c.Key] = map[string]any{"value": c.Value, "own": c.Source == kmsg.ConfigSourceDynamicTopicConfig}
	}
	return result, found[0].Err
}

// Records

func (w *worker) produce(r *request) (any, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	options := []kgo.Opt{
		kgo.SeedBrokers(w.bootstrap),
		kgo.ClientID("compat-franz-producer"),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.ProducerBatchCompression(codecs[r.Codec]),
		kgo.RequiredAcks(acks[r.Acks]),
		kgo.ProducerLinger(time.Duration(r.LingerMS) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(8 << 20),
		// A delivery timeout would count from a record's own timestamp, which lies in the past.
		kgo.RecordRetries(5),
		kgo.ProduceRequestTimeout(10 * time.Second),
	}
	if !r.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	if len(r.Records) > 0 && r.Records[0].Partition != nil {
		options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	sent := make([]*kgo.Record, len(r.Records))
	var failure error
	var lock sync.Mutex
	for i, one := range r.Records {
		sent[i] = &kgo.Record{Topic: r.Topic, Key: bytes(one.Key), Value: bytes(one.Value)}
		if one.Timestamp != 0 {
			sent[i].Timestamp = time.UnixMilli(one.Timestamp)
		}
		if one.Partition != nil {
			sent[i].Partition = *one.Partition
		}
		for _, h := range one.Headers {
			sent[i].Headers = append(sent[i].Headers, kgo.RecordHeader{Key: h.name, Value: bytes(h.value)})
		}
		client.Produce(context.Background(), sent[i], func(_ *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			failure = first(failure, err)
		})
		if r.PauseMS > 0 && i%20 == 19 {
			time.Sleep(time.Duration(r.PauseMS) * time.Millisecond)
		}
	}
	err = client.Flush(context.Background())
	lock.Lock()
	defer lock.Unlock()
	if err = first(err, failure); err != nil {
		return nil, err
	}
	places := make([][2]int64, len(sent))
	for i, one := range sent {
		places[i] = [2]int64{int64(one.Partition), one.Offset}
		if r.Acks == "0" {
			places[i][1] = -1
		}
	}
	return places, nil
}

func (w *worker) read(r *request) (any, error) {
	start := map[int32]kgo.Offset{}
	for partition, offset := range r.Passes[0] {
		start[partition] = kgo.NewOffset().At(offset)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(w.bootstrap),
		kgo.ClientID("compat-franz-consumer"),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: start}),
		kgo.FetchMaxWait(250*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	passes := make([][]record, len(r.Passes))
	for i, starts := range r.Passes {
		if i > 0 {
			seek := map[int32]kgo.EpochOffset{}
			for partition, offset := range starts {
				seek[partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
			}
			client.SetOffsets(map[string]map[int32]kgo.EpochOffset{r.Topic: seek})
		}
		left := map[int32]bool{}
		for partition, offset := range starts {
			if offset < r.Ends[partition] {
				left[partition] = true
			}
		}
		for len(left) > 0 {
			fetches := client.PollFetches(context.Background())
			if err := fetches.Err(); err != nil {
				return nil, err
			}
			fetches.EachRecord(func(got *kgo.Record) {
				// A poll that was under way may still return what lies before a seek.
				if at, wanted := starts[got.Partition]; !wanted || got.Offset < at {
					return
				}
				passes[i] = append(passes[i], described(got))
				if got.Offset >= r.Ends[got.Partition]-1 {
					delete(left, got.Partition)
				}
			})
		}
	}
	return passes, nil
}

func described(got *kgo.Record) record {
	one := record{
		Partition: &got.Partition, Offset: got.Offset, Timestamp: got.Timestamp.UnixMilli(),
		Key: pointer(got.Key), Value: pointer(got.Value), Headers: []header{},
	}
	for _, h := range got.Headers {
		one.Headers = append(one.Headers, header{h.Key, pointer(h.Value)})
	}
	return one
}

// A nil slice is Kafka's null and an empty one is empty: JSON would make both of them the same.
func bytes(p *[]byte) []byte {
	if p == nil {
		return nil
	}
	return append([]byte{}, *p...)
}

func pointer(b []byte) *[]byte {
	if b == nil {
		return nil
	}
	return &b
}

func (w *worker) listOffsets(ctx context.Context, r *request) (any, error) {
	var found kadm.ListedOffsets
	var err error
	switch at := r.At.(type) {
	case float64:
		found, err = w.admin.ListOffsetsAfterMilli(ctx, int64(at), r.Topic)
	case string:
		switch at {
		case "earliest":
			found, err = w.admin.ListStartOffsets(ctx, r.Topic)
		case "latest":
			found, err = w.admin.ListEndOffsets(ctx, r.Topic)
		case "max_timestamp":
			found, err = w.admin.ListMaxTimestampOffsets(ctx, r.Topic)
		}
	}
	var wanted []int32
	if err = first(err, found.Error(), json.Unmarshal(r.Partitions, &wanted)); err != nil {
		return nil, err
	}
	result := map[string]any{}
	for _, partition := range wanted {
		one, ok := found.Lookup(r.Topic, partition)
		if !ok {
			return nil, fmt.Errorf("partition %d is missing in the answer", partition)
		}
		result[strconv.Itoa(int(partition))] = []int64{one.Offset, one.Timestamp}
	}
	return result, nil
}

// Groups

func (w *worker) commit(ctx context.Context, r *request) error {
	offsets := kadm.Offsets{}
	for partition, at := range r.Offsets {
		offsets.Add(kadm.Offset{
			Topic: r.Topic, Partition: partition, At: at.offset, LeaderEpoch: -1, Metadata: at.metadata,
		})
	}
	done, err := w.admin.CommitOffsets(ctx, r.Group, offsets)
	return first(err, done.Error())
}

func (w *worker) committed(ctx context.Context, r *request) (any, error) {
	found, err := w.admin.FetchOffsets(ctx, r.Group)
	result := map[string]any{}
	found.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			result[strconv.Itoa(int(o.Partition))] = []any{o.At, o.Metadata}
		}
	})
	return result, first(err, found.Error())
}

func (w *worker) deleteOffsets(ctx context.Context, r *request) error {
	var partitions []int32
	if err := json.Unmarshal(r.Partitions, &partitions); err != nil {
		return err
	}
	set := kadm.TopicsSet{}
	set.Add(r.Topic, partitions...)
	done, err := w.admin.DeleteOffsets(ctx, r.Group, set)
	return first(err, done.Error())
}

func (w *worker) describeGroup(ctx context.Context, r *request) (any, error) {
	all, err := w.admin.DescribeGroups(ctx, r.Group)
	found := all[r.Group]
	if err = first(err, found.Err); err != nil {
		return nil, err
	}
	members := []any{}
	for _, m := range found.Members {
		partitions := []int32{}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				partitions = append(partitions, t.Partitions...)
			}
		}
		sort.Slice(partitions, func(i, j int) bool { return partitions[i] < partitions[j] })
		members = append(members, map[string]any{
			"client_id": m.ClientID, "instance_id": m.InstanceID, "partitions": partitions,
		})
	}
	return map[string]any{"state": found.State, "assignor": found.Protocol, "members": members}, nil
}

// member is one group member in a goroutine of its own. It commits after each poll and before it gives
// a partition up.
type member struct {
	client *kgo.Client
	cancel context.CancelFunc
	done   chan struct{}

	lock       sync.Mutex
	records    []record
	assigned   map[int32]bool
	rebalances int
	failure    error
}

func (w *worker) join(r *request) error {
	m := &member{assigned: map[int32]bool{}, done: make(chan struct{})}
	balancer := kgo.RangeBalancer()
	if r.Assignor == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(w.bootstrap),
		kgo.ClientID(r.Member),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.ConsumerGroup(r.Group),
		kgo.ConsumeTopics(r.Topic),
		kgo.Balancers(balancer),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			m.change(func() {
				m.rebalances++
				for _, p := range added[r.Topic] {
					m.assigned[p] = true
				}
			})
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, lost map[string][]int32) {
			err := client.CommitUncommittedOffsets(ctx)
			m.change(func() {
				m.failure = first(m.failure, err)
				for _, p := range lost[r.Topic] {
					delete(m.assigned, p)
				}
			})
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			m.change(func() { m.failure = first(m.failure, fmt.Errorf("partitions lost: %v", lost)) })
		}),
	}
	if r.InstanceID != "" {
		options = append(options, kgo.InstanceID(r.InstanceID))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.client, m.cancel = client, cancel
	w.lock.Lock()
	defer w.lock.Unlock()
	w.members[r.Member] = m
	go m.run(ctx)
	return nil
}

func (m *member) change(do func()) {
	m.lock.Lock()
	defer m.lock.Unlock()
	do()
}

func (m *member) run(ctx context.Context) {
	defer close(m.done)
	for ctx.Err() == nil {
		fetches := m.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
			m.change(func() { m.failure = first(m.failure, err) })
		}
		m.change(func() {
			fetches.EachRecord(func(got *kgo.Record) { m.records = append(m.records, described(got)) })
		})
		err := m.client.CommitUncommittedOffsets(context.Background())
		// While a rebalance is under way the commit is made up for by the next one or on revoke.
		if err != nil && !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) {
			m.change(func() { m.failure = first(m.failure, err) })
		}
		m.client.AllowRebalance()
	}
	m.client.CloseAllowingRebalance()
}

func (m *member) state() map[string]any {
	m.lock.Lock()
	defer m.lock.Unlock()
	assigned := []int32{}
	for p := range m.assigned {
		assigned = append(assigned, p)
	}
	sort.Slice(assigned, func(i, j int) bool { return assigned[i] < assigned[j] })
	var failure any
	if m.failure != nil {
		failure = m.failure.Error()
	}
	return map[string]any{
		"assigned": assigned, "count": len(m.records), "rebalances": m.rebalances, "error": failure,
	}
}

func (w *worker) memberStates() any {
	w.lock.Lock()
	defer w.lock.Unlock()
	result := map[string]any{}
	for name, m := range w.members {
		result[name] = m.state()
	}
	return result
}

func (w *worker) leave(r *request) (any, error) {
	w.lock.Lock()
	m := w.members[r.Member]
	delete(w.members, r.Member)
	w.lock.Unlock()
	m.cancel()
	<-m.done
	result := m.state()
	result["records"] = m.records
	return result, nil
}
