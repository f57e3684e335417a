// What the JavaScript programs share: requests and answers as JSON lines, and base64. The operations: matrix/program.py.
'use strict'

const readline = require('readline')

const decoded = text => (text === null ? null : Buffer.from(text, 'base64'))
const encoded = data => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))

// Answers each line of standard input by the operation that it names, one at a time.
async function serve (operations) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { id, op, ...request } = JSON.parse(line)
    let answer
    try {
      const result = await operations[op](request)
      answer = { id, result: result === undefined ? null : result }
    } catch (error) {
      console.error(error)
      answer = { id, error: String(error), code: -1 }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

// A promise and what settles it.
function pending () {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

// Whether each partition was read up to its end; `ends` loses those that were.
function reached (ends, partition, offset) {
  if (Number(offset) + 1 >= ends[partition]) delete ends[partition]
  return Object.keys(ends).length === 0
}

module.exports = { decoded, encoded, serve, pending, reached }
