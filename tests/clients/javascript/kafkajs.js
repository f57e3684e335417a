// The KafkaJS program of the clients matrix, with the codecs that its users add: of the library itself is gzip only.
'use strict'

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require('kafkajs')
const snappy = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const zstd = require('@bokuweb/zstd-wasm')
const { decoded, encoded, serve, pending, reached } = require('./lines')

CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: encoder => lz4.compressFrame(encoder.buffer),
  decompress: buffer => lz4.decompressFrame(buffer)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer))
})
const codecs = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}

const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.WARN, retry: { retries: 3 } })
let groupsMade = 0

const records = list => list.map(record => ({
  partition: record.partition,
  timestamp: String(record.timestamp),
  key: decoded(record.key),
  value: decoded(record.value),
  headers: headersOf(record.headers)
}))

// A name that comes twice has a list of values.
function headersOf (pairs) {
  const headers = {}
  for (const [name, value] of pairs) {
    headers[name] = name in headers ? [].concat(headers[name], [decoded(value)]) : decoded(value)
  }
  return headers
}

const described = (partition, message) => ({
  partition,
  offset: Number(message.offset),
  timestamp: Number(message.timestamp),
  key: encoded(message.key),
  value: encoded(message.value),
  headers: Object.entries(message.headers).flatMap(([name, value]) => [].concat(value).map(one => [name, encoded(one)]))
})

// The client tells the first offset of each partition's batch.
function places (list, sent) {
  const nexts = Object.fromEntries(sent.map(one => [one.partition, Number(one.baseOffset)]))
  return list.map(record => [record.partition, nexts[record.partition]++])
}

async function connected (client, use) {
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.disconnect()
  }
}

const administered = use => connected(kafka.admin(), use)

// Gives each record to `take` until that says that it was the last; what comes after it is left alone.
async function consuming (consumer, topic, take) {
  return connected(consumer, async () => {
    const done = pending()
    let ended = false
    consumer.on(consumer.events.CRASH, event => done.reject(event.payload.error))
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (ended || !await take(partition, message)) return
        ended = true
        done.resolve()
      }
    })
    await done.promise
  })
}

const operations = {
  offers: () => ({
    operations: Object.keys(operations).concat('idempotent', 'transact_offsets', 'read_committed'),
    codecs: Object.keys(codecs),
    lacks: ['null headers', 'none so late']
  }),

  cluster: () => administered(async admin => {
    const { brokers, controller, clusterId } = await admin.describeCluster()
    return {
      cluster_id: clusterId,
      controller,
      brokers: brokers.map(b => ({ id: b.nodeId, address: `${b.host}:${b.port}` }))
    }
  }),
  create_topic: ({ topic, partitions, configs }) => administered(async admin => {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    if (!await admin.createTopics({ topics: [{ topic, numPartitions: partitions, configEntries }] })) {
      throw new Error('not created')
    }
  }),
  topics: () => administered(admin => admin.listTopics()),
  delete_topic: ({ topic }) => administered(admin => admin.deleteTopics({ topics: [topic] })),
  set_config: request => operations.replace_configs(request),
  replace_configs: ({ topic, name, value }) => administered(async admin => {
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name, value }] }]
    })
  }),
  configs: ({ topic }) => administered(async admin => {
    const found = await admin.describeConfigs({ resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }] })
    return Object.fromEntries(found.resources[0].configEntries.map(e => [e.configName, e.configValue]))
  }),

  produce: ({ topic, records: list, codec, idempotent }) => {
    const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 })
    return connected(producer, async () => places(list, await producer.send({
      topic, acks: -1, compression: codecs[codec], messages: records(list)
    })))
  },
  transact: ({ topic, records: list, transaction, commit, group, offset }) => {
    const producer = kafka.producer({ transactionalId: transaction, maxInFlightRequests: 1, idempotent: true })
    return connected(producer, async () => {
      const begun = await producer.transaction()
      const sent = places(list, await begun.send({ topic, acks: -1, messages: records(list) }))
      if (offset !== undefined) {
        await begun.sendOffsets({
          consumerGroupId: group, topics: [{ topic, partitions: [{ partition: 0, offset: String(offset) }] }]
        })
      }
      await (commit ? begun.commit() : begun.abort())
      return sent
    })
  },
  // It reads as a group only.
  read: async ({ topic, ends, committed }) => {
    const list = []
    await consuming(kafka.consumer({
      groupId: `read-${topic}-${groupsMade++}`, readUncommitted: !committed, maxWaitTimeInMs: 250
    }), topic, (partition, message) => {
      if (!(partition in ends)) return false
      list.push(described(partition, message))
      return reached(ends, partition, message.offset)
    })
    return list
  },
  consume: async ({ group, topic, count }) => {
    const list = []
    const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 250 })
    await consuming(consumer, topic, async (partition, message) => {
      list.push(described(partition, message))
      await consumer.commitOffsets([{ topic, partition, offset: String(Number(message.offset) + 1) }])
      return list.length === count
    })
    return list
  },
  committed: ({ group, topic }) => administered(async admin => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return Object.fromEntries(partitions.filter(p => p.offset !== '-1').map(p => [p.partition, Number(p.offset)]))
  }),
  offset_at: ({ topic, partition, at }) => administered(async admin => {
    const found = typeof at === 'string'
      ? await admin.fetchTopicOffsets(topic)
      : await admin.fetchTopicOffsetsByTimestamp(topic, at)
    const one = found.find(p => p.partition === partition)
    return Number(at === 'earliest' ? one.low : one.offset)
  }),
  delete_records: ({ topic, partition, offset }) => administered(async admin => {
    await admin.fetchTopicOffsets(topic) // It looks for the leader among the topics that it has met.
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] })
  }),
  groups: () => administered(async admin => (await admin.listGroups()).groups.map(g => g.groupId)),
  group_state: ({ group }) => administered(async admin => (await admin.describeGroups([group])).groups[0].state),
  delete_group: ({ group }) => administered(async admin => { await admin.deleteGroups([group]) })
}

zstd.init().then(() => serve(operations))
