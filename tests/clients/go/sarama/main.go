// The Sarama program of the clients matrix. old.mod builds it with a release from before the library changed its owner.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"mainstem/lines"
)

var bootstrap = os.Args[1:2]

func main() {
	operations := map[string]lines.Operation{
		"cluster": cluster, "create_topic": createTopic, "topics": topics, "delete_topic": deleteTopic,
		"set_config": setConfig, "replace_configs": replaceConfigs, "configs": configs, "produce": produce,
		"transact": transact, "read": read, "consume": consume, "committed": committed, "offset_at": offsetAt,
		"delete_records": deleteRecords, "groups": groups, "group_state": groupState, "delete_group": deleteGroup,
	}
	offers := lines.Offers(operations, []string{"idempotent", "read_committed", "transact_offsets"},
		[]string{"none", "gzip", "snappy", "lz4", "zstd"}, lacks)
	operations["offers"] = func(*lines.Request) (any, error) { return offers, nil }
	sarama.Logger = log.New(os.Stderr, "", log.LstdFlags)
	lines.Serve(operations)
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = version
	config.Net.MaxOpenRequests = 1
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 250 * time.Millisecond
	return config
}

// administer calls `do` with an administration of its own.
func administer(do func(sarama.ClusterAdmin) (any, error)) (any, error) {
	admin, err := sarama.NewClusterAdmin(bootstrap, settings())
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	return do(admin)
}

// The cluster and its topics

func cluster(*lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		brokers, controller, err := admin.DescribeCluster()
		list := []any{}
		for _, broker := range brokers {
			list = append(list, map[string]any{"id": broker.ID(), "address": broker.Addr()})
		}
		return map[string]any{"controller": controller, "brokers": list}, err
	})
}

func createTopic(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		entries := map[string]*string{}
		for name, value := range r.Configs {
			value := value
			entries[name] = &value
		}
		return nil, admin.CreateTopic(r.Topic, &sarama.TopicDetail{
			NumPartitions: r.Partitions, ReplicationFactor: 1, ConfigEntries: entries,
		}, false)
	})
}

func topics(*lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		found, err := admin.ListTopics()
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		return names, err
	})
}

func deleteTopic(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) { return nil, admin.DeleteTopic(r.Topic) })
}

func setConfig(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		entries := map[string]sarama.IncrementalAlterConfigsEntry{
			r.Name: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &r.Value},
		}
		return nil, admin.IncrementalAlterConfig(sarama.TopicResource, r.Topic, entries, false)
	})
}

func replaceConfigs(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		return nil, admin.AlterConfig(sarama.TopicResource, r.Topic, map[string]*string{r.Name: &r.Value}, false)
	})
}

func configs(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: r.Topic})
		values := map[string]string{}
		for _, entry := range entries {
			values[entry.Name] = entry.Value
		}
		return values, err
	})
}

// Records

func produce(r *lines.Request) (any, error) {
	config := settings()
	if err := config.Producer.Compression.UnmarshalText([]byte(r.Codec)); err != nil {
		return nil, err
	}
	if r.Idempotent {
		config.Producer.Idempotent = true
	}
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	return send(producer, r)
}

func send(producer sarama.SyncProducer, r *lines.Request) (any, error) {
	messages := []*sarama.ProducerMessage{}
	for _, record := range r.Records {
		message := &sarama.ProducerMessage{
			Topic: r.Topic, Partition: record.Partition, Timestamp: time.UnixMilli(record.Timestamp),
		}
		if record.Key != nil {
			message.Key = sarama.ByteEncoder(record.Key)
		}
		if record.Value != nil {
			message.Value = sarama.ByteEncoder(record.Value)
		}
		for _, header := range record.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		messages = append(messages, message)
	}
	err := producer.SendMessages(messages)
	places := [][]int64{}
	for _, message := range messages {
		places = append(places, []int64{int64(message.Partition), message.Offset})
	}
	return places, err
}

func transact(r *lines.Request) (any, error) {
	config := settings()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = r.Transaction
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if err := producer.BeginTxn(); err != nil {
		return nil, err
	}
	places, err := send(producer, r)
	if err != nil {
		return nil, err
	}
	if r.Offset != nil {
		offsets := map[string][]*sarama.PartitionOffsetMetadata{r.Topic: {{Partition: 0, Offset: *r.Offset}}}
		if err := producer.AddOffsetsToTxn(offsets, r.Group); err != nil {
			return nil, err
		}
	}
	if r.Commit {
		return places, producer.CommitTxn()
	}
	return places, producer.AbortTxn()
}

func read(r *lines.Request) (any, error) {
	config := settings()
	if r.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	consumer, err := sarama.NewConsumer(bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	records := []lines.Record{}
	for number, end := range r.Ends {
		partition, err := consumer.ConsumePartition(r.Topic, number, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		for message := range partition.Messages() {
			records = append(records, described(message))
			if message.Offset+1 >= end {
				break
			}
		}
		if err := partition.Close(); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func described(message *sarama.ConsumerMessage) lines.Record {
	headers := []lines.Header{}
	for _, header := range message.Headers {
		headers = append(headers, lines.Header{Name: string(header.Key), Value: header.Value})
	}
	return lines.Record{
		Partition: message.Partition, Offset: message.Offset, Timestamp: message.Timestamp.UnixMilli(),
		Key: message.Key, Value: message.Value, Headers: headers,
	}
}

// member takes records until there are enough, commits them and leaves.
type member struct {
	count   int
	records chan lines.Record
	enough  chan struct{}
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	defer session.Commit()
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			select {
			case m.records <- described(message):
				session.MarkMessage(message, "")
			case <-m.enough:
				return nil
			}
		case <-m.enough:
			return nil
		}
	}
}

func consume(r *lines.Request) (any, error) {
	group, err := sarama.NewConsumerGroup(bootstrap, r.Group, settings())
	if err != nil {
		return nil, err
	}
	m := &member{records: make(chan lines.Record), enough: make(chan struct{})}
	records := []lines.Record{}
	go func() {
		for len(records) < r.Count {
			records = append(records, <-m.records)
		}
		close(m.enough)
	}()
	err = group.Consume(context.Background(), []string{r.Topic}, m)
	return records, errors.Join(err, group.Close())
}

func offsetAt(r *lines.Request) (any, error) {
	client, err := sarama.NewClient(bootstrap, settings())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.GetOffset(r.Topic, r.Partition, r.Time())
}

func deleteRecords(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		return nil, admin.DeleteRecords(r.Topic, map[int32]int64{r.Partition: *r.Offset})
	})
}

// Groups

func committed(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		found, err := admin.ListConsumerGroupOffsets(r.Group, nil)
		if err != nil {
			return nil, err
		}
		offsets := map[int32]int64{}
		for partition, block := range found.Blocks[r.Topic] {
			offsets[partition] = block.Offset
		}
		return offsets, nil
	})
}

func groups(*lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		found, err := admin.ListConsumerGroups()
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		return names, err
	})
}

func groupState(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) {
		found, err := admin.DescribeConsumerGroups([]string{r.Group})
		if err != nil {
			return nil, err
		}
		return found[0].State, nil
	})
}

func deleteGroup(r *lines.Request) (any, error) {
	return administer(func(admin sarama.ClusterAdmin) (any, error) { return nil, admin.DeleteConsumerGroup(r.Group) })
}
