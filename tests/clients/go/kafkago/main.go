// The kafka-go program of the clients matrix.
package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/compress"
	"mainstem/lines"
)

var (
	ctx       = context.Background()
	bootstrap = os.Args[1]
	client    = &kafka.Client{Addr: kafka.TCP(bootstrap)}
)

func main() {
	operations := map[string]lines.Operation{
		"cluster": cluster, "create_topic": createTopic, "topics": topics, "delete_topic": deleteTopic,
		"produce": produce, "read": read, "consume": consume, "committed": committed, "offset_at": offsetAt,
	}
	for name, operation := range more {
		operations[name] = operation
	}
	offers := lines.Offers(operations, []string{"read_committed"}, []string{"none", "gzip", "snappy", "lz4", "zstd"}, lacks)
	operations["offers"] = func(*lines.Request) (any, error) { return offers, nil }
	lines.Serve(operations)
}

// The cluster and its topics

func connected(do func(*kafka.Conn) (any, error)) (any, error) {
	conn, err := kafka.Dial("tcp", bootstrap)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return do(conn)
}

func cluster(*lines.Request) (any, error) {
	return connected(func(conn *kafka.Conn) (any, error) {
		controller, err := conn.Controller()
		if err != nil {
			return nil, err
		}
		found, err := conn.Brokers()
		brokers := []any{}
		for _, broker := range found {
			address := net.JoinHostPort(broker.Host, strconv.Itoa(broker.Port))
			brokers = append(brokers, map[string]any{"id": broker.ID, "address": address})
		}
		return map[string]any{"controller": controller.ID, "brokers": brokers}, err
	})
}

func createTopic(r *lines.Request) (any, error) {
	topic := kafka.TopicConfig{Topic: r.Topic, NumPartitions: int(r.Partitions), ReplicationFactor: 1}
	for name, value := range r.Configs {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	found, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err != nil {
		return nil, err
	}
	return nil, found.Errors[r.Topic]
}

func topics(*lines.Request) (any, error) {
	return connected(func(conn *kafka.Conn) (any, error) {
		partitions, err := conn.ReadPartitions()
		names := []string{}
		for _, partition := range partitions {
			names = append(names, partition.Topic)
		}
		return names, err
	})
}

func deleteTopic(r *lines.Request) (any, error) {
	found, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{r.Topic}})
	if err != nil {
		return nil, err
	}
	return nil, found.Errors[r.Topic]
}

// Records

var codecs = map[string]compress.Compression{"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

// chosen finds a record's partition by its time, since the library asks for it by the record.
type chosen map[int64]int

func (c chosen) Balance(message kafka.Message, _ ...int) int { return c[message.Time.UnixMilli()] }

func produce(r *lines.Request) (any, error) {
	partitions := chosen{}
	config := kafka.WriterConfig{
		Brokers: []string{bootstrap}, Topic: r.Topic, Balancer: partitions, BatchTimeout: 5 * time.Millisecond,
		RequiredAcks: -1, BatchSize: 1000,
	}
	if r.Codec != "none" {
		config.CompressionCodec = codecs[r.Codec].Codec()
	}
	writer := kafka.NewWriter(config)
	messages, places := []kafka.Message{}, [][]int64{}
	for _, record := range r.Records {
		headers := []kafka.Header{}
		for _, header := range record.Headers {
			headers = append(headers, kafka.Header{Key: header.Name, Value: header.Value})
		}
		partitions[record.Timestamp] = int(record.Partition)
		messages = append(messages, kafka.Message{
			Key: record.Key, Value: record.Value, Headers: headers, Time: time.UnixMilli(record.Timestamp),
		})
		places = append(places, []int64{int64(record.Partition), -1})
	}
	return places, errors.Join(writer.WriteMessages(ctx, messages...), writer.Close())
}

func read(r *lines.Request) (any, error) {
	records := []lines.Record{}
	for partition, end := range r.Ends {
		config := kafka.ReaderConfig{
			Brokers: []string{bootstrap}, Topic: r.Topic, Partition: int(partition), MinBytes: 1, MaxBytes: 8 << 20,
			MaxWait: 250 * time.Millisecond,
		}
		if r.Committed {
			config.IsolationLevel = kafka.ReadCommitted
		}
		reader := kafka.NewReader(config)
		for next := int64(0); next < end; {
			message, err := reader.ReadMessage(ctx)
			if err != nil {
				return nil, err
			}
			records, next = append(records, described(message)), message.Offset+1
		}
		if err := reader.Close(); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func described(message kafka.Message) lines.Record {
	headers := []lines.Header{}
	for _, header := range message.Headers {
		headers = append(headers, lines.Header{Name: header.Key, Value: header.Value})
	}
	return lines.Record{
		Partition: int32(message.Partition), Offset: message.Offset, Timestamp: message.Time.UnixMilli(),
		Key: message.Key, Value: message.Value, Headers: headers,
	}
}

func consume(r *lines.Request) (any, error) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: r.Group, Topic: r.Topic, StartOffset: kafka.FirstOffset, MinBytes: 1,
		MaxBytes: 8 << 20, MaxWait: 250 * time.Millisecond,
	})
	records, messages := []lines.Record{}, []kafka.Message{}
	for len(records) < r.Count {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return nil, err
		}
		records, messages = append(records, described(message)), append(messages, message)
	}
	return records, errors.Join(reader.CommitMessages(ctx, messages...), reader.Close())
}

func offsetAt(r *lines.Request) (any, error) {
	conn, err := kafka.DialLeader(ctx, "tcp", bootstrap, r.Topic, int(r.Partition))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	switch r.Time() {
	case -2:
		return conn.ReadFirstOffset()
	case -1:
		return conn.ReadLastOffset()
	}
	return conn.ReadOffset(time.UnixMilli(r.Time()))
}

func committed(r *lines.Request) (any, error) {
	return client.ConsumerOffsets(ctx, kafka.TopicAndGroup{Topic: r.Topic, GroupId: r.Group})
}
