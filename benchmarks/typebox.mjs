// TypeBox's Value.Cast, timed inside node: one JSON request on each line of stdin, one reply on each line of stdout.
// {"name", "schema", "value"} adds a case; {"name"} gives its answer; {"name", "count"} runs a batch and gives its times.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const require = createRequire(process.argv[2])
const { Type } = require('@sinclair/typebox')
const { Value } = require('@sinclair/typebox/value')

const cases = new Map()

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(answer(JSON.parse(line))))
}

function answer({ name, schema, value, count }) {
  if (schema !== undefined) return add(name, schema, value)
  if (count === undefined) return Value.Cast(...cases.get(name))
  return batch(...cases.get(name), count)
}

function add(name, schema, value) {
  cases.set(name, [toType(schema), value])
  return null
}

function batch(type, value, count) {
  const cpuStart = process.cpuUsage()
  const wallStart = process.hrtime.bigint()
  for (let i = 0; i < count; i++) Value.Cast(type, value)
  const wall = Number(process.hrtime.bigint() - wallStart) / 1000
  const cpu = process.cpuUsage(cpuStart)
  return { cpu: (cpu.user + cpu.system) / count, wall: wall / count }
}

// The few keywords our schema uses, in the native types of TypeBox.
function toType(schema) {
  if (schema.enum) return Type.Union(schema.enum.map((member) => Type.Literal(member)))
  if (Array.isArray(schema.type)) return Type.Union(schema.type.map((type) => toType({ type })))
  switch (schema.type) {
    case 'object': return toObject(schema)
    case 'array': return Type.Array(toType(schema.items))
    case 'string': return Type.String()
    case 'integer': return Type.Integer()
    case 'number': return Type.Number()
    case 'boolean': return Type.Boolean()
    case 'null': return Type.Null()
    default: throw new Error(`no TypeBox type for ${JSON.stringify(schema)}`)
  }
}

function toObject({ properties, additionalProperties }) {
  const types = Object.entries(properties).map(([name, schema]) => [name, toType(schema)])
  return Type.Object(Object.fromEntries(types), additionalProperties === false ? { additionalProperties } : {})
}
