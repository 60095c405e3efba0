"""Arguments of jobs to JSON and back.

arrival       Compares what was dispatched with what a worker will get.
injection     Provided parameters (app.provide) and models sent by key (app.serializer).
parameters    Parameters of functions, dataclasses, structs and attrs classes.
signature     Signature: binds, encodes and decodes the arguments of one job; patterns filled from them.
values        Untyped values as JSON; repair of what Lua's cjson changed.
"""
