// The @platformatic/kafka program of the clients matrix.
'use strict'

const { Admin, Consumer, Producer, ConfigResourceTypes, FetchIsolationLevels, IncrementalAlterConfigTypes } =
  require('@platformatic/kafka')
const zlib = require('zlib')
const { decoded, encoded, serve, reached } = require('./lines')

const base = { clientId: 'matrix', bootstrapBrokers: [process.argv[2]], retries: 3 }
const admin = new Admin(base)

// It takes what is not there for null.
const records = (topic, list) => list.map(record => ({
  topic,
  partition: record.partition,
  timestamp: BigInt(record.timestamp),
  key: decoded(record.key) ?? undefined,
  value: decoded(record.value) ?? undefined,
  headers: new Map(record.headers.map(([name, value]) => [Buffer.from(name), decoded(value)]))
}))

const described = message => ({
  partition: message.partition,
  offset: Number(message.offset),
  timestamp: Number(message.timestamp),
  key: encoded(message.key),
  value: encoded(message.value),
  headers: [...message.headers].map(([name, value]) => [name.toString(), encoded(value)])
})

// The client tells the first offset of each partition's batch.
function places (list, sent) {
  const nexts = Object.fromEntries(sent.offsets.map(one => [one.partition, Number(one.offset)]))
  return list.map(record => [record.partition, nexts[record.partition]++])
}

async function using (client, use) {
  try {
    return await use(client)
  } finally {
    await client.close(true)
  }
}

// Waits until every partition has its leader: if one of them refuses, the client sends those that did not once more.
async function led (topic, count) {
  const partitions = Array.from({ length: count }, (_, partitionIndex) => ({ partitionIndex, timestamp: -1n }))
  for (;;) {
    try {
      return void await admin.listOffsets({ topics: [{ name: topic, partitions }] })
    } catch (error) {
      if (!error.findBy?.('hasStaleMetadata', true)) throw error
    }
  }
}

const topicConfig = (topic, configs) =>
  ({ resources: [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configs }] })

const operations = {
  offers: () => ({
    operations: Object.keys(operations).concat('idempotent', 'read_committed'),
    codecs: ['none', 'gzip', 'snappy', 'lz4'].concat('zstdCompressSync' in zlib ? ['zstd'] : []),
    lacks: []
  }),

  cluster: async () => {
    const found = await admin.metadata({})
    return {
      cluster_id: found.id,
      controller: found.controllerId,
      brokers: [...found.brokers].map(([id, b]) => ({ id, address: `${b.host}:${b.port}` }))
    }
  },
  create_topic: async ({ topic, partitions, configs }) => {
    await admin.createTopics({
      topics: [topic], partitions, replicas: 1, configs: Object.entries(configs).map(([name, value]) => ({ name, value }))
    })
    await led(topic, partitions)
  },
  topics: () => admin.listTopics(),
  delete_topic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  set_config: ({ topic, name, value }) => admin.incrementalAlterConfigs(
    topicConfig(topic, [{ name, value, configOperation: IncrementalAlterConfigTypes?.SET ?? 0 }])),
  replace_configs: ({ topic, name, value }) => admin.alterConfigs(topicConfig(topic, [{ name, value }])),
  configs: async ({ topic }) => {
    const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic }
    const [{ configs }] = await admin.describeConfigs({ resources: [resource] })
    return Object.fromEntries(configs.map(e => [e.name, e.value]))
  },

  produce: ({ topic, records: list, codec, idempotent }) =>
    using(new Producer({ ...base, idempotent }), async producer => places(list, await producer.send({
      messages: records(topic, list), compression: codec, acks: -1
    }))),
  transact: ({ topic, records: list, transaction, commit }) =>
    using(new Producer({ ...base, idempotent: true, transactionalId: transaction }), async producer => {
      const begun = await producer.beginTransaction()
      const sent = places(list, await begun.send({ messages: records(topic, list), acks: -1 }))
      await (commit ? begun.commit() : begun.abort())
      return sent
    }),
  read: ({ topic, ends, committed }) => using(new Consumer({ ...base, groupId: `read-${topic}` }), async consumer => {
    const list = []
    const stream = await consumer.consume({
      topics: [topic],
      mode: 'earliest',
      autocommit: false,
      maxWaitTime: 250,
      isolationLevel: committed ? FetchIsolationLevels.READ_COMMITTED : FetchIsolationLevels.READ_UNCOMMITTED
    })
    for await (const message of stream) {
      list.push(described(message))
      if (reached(ends, message.partition, message.offset)) break
    }
    return list
  }),
  consume: ({ group, topic, count }) => using(new Consumer({ ...base, groupId: group }), async consumer => {
    const list = []
    const stream = await consumer.consume({
      topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, maxWaitTime: 250
    })
    for await (const message of stream) {
      list.push(described(message))
      await message.commit()
      if (list.length === count) break
    }
    return list
  }),
  committed: async ({ group, topic }) => {
    const [{ topics }] = await admin.listConsumerGroupOffsets({ groups: [group] })
    const { partitions } = topics.find(one => one.name === topic)
    return Object.fromEntries(partitions.map(p => [p.partitionIndex, Number(p.committedOffset)]))
  },
  offset_at: ({ topic, partition, at }) => using(new Consumer({ ...base, groupId: 'unused' }), async consumer => {
    const timestamp = { earliest: -2n, latest: -1n }[at] ?? BigInt(at)
    const found = await consumer.listOffsets({ topics: [topic], partitions: { [topic]: [partition] }, timestamp })
    return Number(found.get(topic)[partition])
  }),
  admin_offset_at: async ({ topic, partition, at }) => {
    const timestamp = { earliest: -2n, latest: -1n }[at] ?? BigInt(at)
    const [found] = await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: partition, timestamp }] }] })
    return Number(found.partitions[0].offset)
  },
  delete_records: async ({ topic, partition, offset }) => {
    const [found] = await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition, offset: BigInt(offset) }] }] })
    return Number(found.partitions[0].lowWatermark)
  },
  groups: async () => [...(await admin.listGroups({ states: [] })).keys()],
  group_state: async ({ group }) => (await admin.describeGroups({ groups: [group] })).get(group).state,
  delete_group: ({ group }) => admin.deleteGroups({ groups: [group] })
}

serve(operations)
