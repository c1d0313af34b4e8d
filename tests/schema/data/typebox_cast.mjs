// Answers for TypeBox: reads lines {spec, values}, writes lines {schema, answers}. The library is the first argument.
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const library = pathToFileURL(`${process.argv[2]}/@sinclair/typebox/build/esm/`).href
const { Type } = await import(`${library}index.mjs`)
const { Value } = await import(`${library}value/index.mjs`)

const all = (specs, self) => specs.map((spec) => build(spec, self))

function properties(spec, self) {
  const entries = Object.entries(spec.properties).map(([name, part]) => {
    const type = build(part, self)
    return [name, spec.optional.includes(name) ? Type.Optional(type) : type]
  })
  return Object.fromEntries(entries)
}

function options(spec, self) {
  const given = { ...spec.options }
  for (const name of ['additionalProperties', 'unevaluatedProperties', 'contains']) {
    if (given[name]?.kind) given[name] = build(given[name], self)
  }
  return given
}

function build(spec, self) {
  const given = options(spec, self)
  switch (spec.kind) {
    case 'This': return self
    case 'Ref': return Type.Ref(spec.name, given)
    case 'Literal': return Type.Literal(spec.value, given)
    case 'Object': return Type.Object(properties(spec, self), given)
    case 'Array': return Type.Array(build(spec.items, self), given)
    case 'Tuple': return Type.Tuple(all(spec.items, self), given)
    case 'Record': return Type.Record(Type.String(spec.pattern === null ? {} : { pattern: spec.pattern }), build(spec.values, self), given)
    case 'Union': return Type.Union(all(spec.variants, self), given)
    case 'Intersect': return Type.Intersect(all(spec.members, self), given)
    case 'Not': return Type.Not(build(spec.inner, self), given)
    case 'Recursive': return Type.Recursive((inner) => build(spec.inner, inner), { $id: spec.name })
    case 'Module': {
      const parts = Object.entries(spec.parts).map(([name, part]) => [name, build(part, self)])
      return Type.Module(Object.fromEntries(parts)).Import(spec.name)
    }
    default: return Type[spec.kind](given)
  }
}

function answer(type, value) {
  try {
    return { cast: Value.Cast(type, value) }
  } catch (error) {
    return { error: { type: error.constructor.name, message: error.message } }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { spec, values } = JSON.parse(line)
  const type = build(spec)
  const answers = values.map((value) => answer(type, value))
  process.stdout.write(`${JSON.stringify({ schema: type, answers })}\n`)
}
