// The franz-go program of the clients matrix. What the library has no call of its own for is asked by its requests, as users
// of the releases before its package kadm do.
package main

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"mainstem/lines"
)

var (
	ctx       = context.Background()
	bootstrap = kgo.SeedBrokers(os.Args[1])
	admin     = must(kgo.NewClient(bootstrap))
)

func must(client *kgo.Client, err error) *kgo.Client {
	if err != nil {
		panic(err)
	}
	return client
}

func main() {
	operations := map[string]lines.Operation{
		"cluster": cluster, "features": features, "create_topic": createTopic, "topics": topics,
		"delete_topic": deleteTopic, "set_config": setConfig, "replace_configs": replaceConfigs, "configs": configs,
		"produce": produce, "transact": transact, "read": read, "consume": consume, "committed": committed,
		"offset_at": offsetAt, "delete_records": deleteRecords, "groups": groups, "group_state": groupState,
		"delete_group": deleteGroup,
	}
	offers := lines.Offers(operations, []string{"idempotent", "read_committed"},
		[]string{"none", "gzip", "snappy", "lz4", "zstd"}, lacks)
	operations["offers"] = func(*lines.Request) (any, error) { return offers, nil }
	lines.Serve(operations)
}

// The cluster and its topics

func cluster(*lines.Request) (any, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	brokers := []any{}
	for _, broker := range found.Brokers {
		brokers = append(brokers, map[string]any{"id": broker.NodeID, "address": address(broker.Host, broker.Port)})
	}
	return map[string]any{"cluster_id": found.ClusterID, "controller": found.ControllerID, "brokers": brokers}, nil
}

func features(*lines.Request) (any, error) {
	request := kmsg.NewPtrApiVersionsRequest()
	request.ClientSoftwareName, request.ClientSoftwareVersion = "matrix", "1"
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	ranges := map[string][]int16{}
	for _, feature := range found.SupportedFeatures {
		ranges[feature.Name] = []int16{feature.MinVersion, feature.MaxVersion}
	}
	return ranges, kerr.ErrorForCode(found.ErrorCode)
}

func createTopic(r *lines.Request) (any, error) {
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = r.Topic, r.Partitions, 1
	for name, value := range r.Configs {
		value := value
		topic.Configs = append(topic.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: &value})
	}
	request.Topics = append(request.Topics, topic)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(found.Topics[0].ErrorCode)
}

func topics(*lines.Request) (any, error) {
	found, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, topic := range found.Topics {
		names = append(names, *topic.Topic)
	}
	return names, nil
}

func deleteTopic(r *lines.Request) (any, error) {
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.TopicNames = []string{r.Topic}
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &r.Topic
	request.Topics = append(request.Topics, topic)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(found.Topics[0].ErrorCode)
}

func setConfig(r *lines.Request) (any, error) {
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, r.Topic
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = r.Name, &r.Value
	resource.Configs = append(resource.Configs, config)
	request.Resources = append(request.Resources, resource)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(found.Resources[0].ErrorCode)
}

func replaceConfigs(r *lines.Request) (any, error) {
	request := kmsg.NewPtrAlterConfigsRequest()
	resource := kmsg.NewAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, r.Topic
	resource.Configs = append(resource.Configs, kmsg.AlterConfigsRequestResourceConfig{Name: r.Name, Value: &r.Value})
	request.Resources = append(request.Resources, resource)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(found.Resources[0].ErrorCode)
}

func configs(r *lines.Request) (any, error) {
	request := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, r.Topic
	request.Resources = append(request.Resources, resource)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	values := map[string]*string{}
	for _, config := range found.Resources[0].Configs {
		values[config.Name] = config.Value
	}
	return values, kerr.ErrorForCode(found.Resources[0].ErrorCode)
}

// Records

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func produce(r *lines.Request) (any, error) {
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[r.Codec])}
	if !r.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := producer(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return send(client, r)
}

func producer(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, bootstrap, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
}

func send(client *kgo.Client, r *lines.Request) (any, error) {
	records := []*kgo.Record{}
	for _, record := range r.Records {
		headers := []kgo.RecordHeader{}
		for _, header := range record.Headers {
			headers = append(headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		records = append(records, &kgo.Record{
			Topic: r.Topic, Partition: record.Partition, Timestamp: time.UnixMilli(record.Timestamp),
			Key: record.Key, Value: record.Value, Headers: headers,
		})
	}
	err := client.ProduceSync(ctx, records...).FirstErr()
	places := [][]int64{}
	for _, record := range records {
		places = append(places, []int64{int64(record.Partition), record.Offset})
	}
	return places, err
}

// transact begins again while the server is still ending the last transaction, which early releases leave to their users.
func transact(r *lines.Request) (any, error) {
	for {
		places, err := transactOnce(r)
		// The early releases do not wrap it.
		if err == nil || !strings.Contains(err.Error(), kerr.ConcurrentTransactions.Message) {
			return places, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func transactOnce(r *lines.Request) (any, error) {
	client, err := producer(kgo.TransactionalID(r.Transaction))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	places, err := send(client, r)
	if err != nil {
		return nil, err
	}
	return places, client.EndTransaction(ctx, kgo.TransactionEndTry(r.Commit))
}

func read(r *lines.Request) (any, error) {
	partitions := map[int32]kgo.Offset{}
	for partition := range r.Ends {
		partitions[partition] = kgo.NewOffset().AtStart()
	}
	level := kgo.ReadUncommitted()
	if r.Committed {
		level = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(bootstrap, kgo.FetchIsolationLevel(level), kgo.FetchMaxWait(250*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.Topic: partitions}))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := []lines.Record{}
	for len(r.Ends) > 0 {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		for all := fetches.RecordIter(); !all.Done(); {
			record := all.Next()
			records = append(records, described(record))
			if record.Offset+1 >= r.Ends[record.Partition] {
				delete(r.Ends, record.Partition)
			}
		}
	}
	return records, nil
}

func described(record *kgo.Record) lines.Record {
	headers := []lines.Header{}
	for _, header := range record.Headers {
		headers = append(headers, lines.Header{Name: header.Key, Value: header.Value})
	}
	return lines.Record{
		Partition: record.Partition, Offset: record.Offset, Timestamp: record.Timestamp.UnixMilli(),
		Key: record.Key, Value: record.Value, Headers: headers,
	}
}

func consume(r *lines.Request) (any, error) {
	client, err := kgo.NewClient(bootstrap, kgo.ConsumerGroup(r.Group), kgo.ConsumeTopics(r.Topic), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(6*time.Second), kgo.FetchMaxWait(250*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records, taken := []lines.Record{}, []*kgo.Record{}
	for len(records) < r.Count {
		fetches := client.PollRecords(ctx, r.Count-len(records))
		for _, failed := range fetches.Errors() {
			return nil, failed.Err
		}
		for all := fetches.RecordIter(); !all.Done(); {
			record := all.Next()
			records, taken = append(records, described(record)), append(taken, record)
		}
	}
	return records, client.CommitRecords(ctx, taken...)
}

func offsetAt(r *lines.Request) (any, error) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	topic, partition := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	partition.Partition, partition.Timestamp = r.Partition, r.Time()
	topic.Topic, topic.Partitions = r.Topic, append(topic.Partitions, partition)
	request.Topics = append(request.Topics, topic)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return found.Topics[0].Partitions[0].Offset, kerr.ErrorForCode(found.Topics[0].Partitions[0].ErrorCode)
}

func deleteRecords(r *lines.Request) (any, error) {
	request := kmsg.NewPtrDeleteRecordsRequest()
	topic, partition := kmsg.NewDeleteRecordsRequestTopic(), kmsg.NewDeleteRecordsRequestTopicPartition()
	partition.Partition, partition.Offset = r.Partition, *r.Offset
	topic.Topic, topic.Partitions = r.Topic, append(topic.Partitions, partition)
	request.Topics = append(request.Topics, topic)
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	done := found.Topics[0].Partitions[0]
	return done.LowWatermark, kerr.ErrorForCode(done.ErrorCode)
}

// Groups

func committed(r *lines.Request) (any, error) {
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = r.Group
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for _, topic := range found.Topics {
		for _, partition := range topic.Partitions {
			offsets[partition.Partition] = partition.Offset
		}
	}
	return offsets, kerr.ErrorForCode(found.ErrorCode)
}

func groups(*lines.Request) (any, error) {
	found, err := kmsg.NewPtrListGroupsRequest().RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, group := range found.Groups {
		names = append(names, group.Group)
	}
	return names, kerr.ErrorForCode(found.ErrorCode)
}

func groupState(r *lines.Request) (any, error) {
	request := kmsg.NewPtrDescribeGroupsRequest()
	request.Groups = []string{r.Group}
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return found.Groups[0].State, kerr.ErrorForCode(found.Groups[0].ErrorCode)
}

func deleteGroup(r *lines.Request) (any, error) {
	request := kmsg.NewPtrDeleteGroupsRequest()
	request.Groups = []string{r.Group}
	found, err := request.RequestWith(ctx, admin)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(found.Groups[0].ErrorCode)
}

func address(host string, port int32) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
