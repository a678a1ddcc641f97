"""One answer of each endpoint, as the events of its stream."""

from chat_events import ANSWER

from inferload.scenario.schema.endpoints import EndpointName, names_of

STREAMED = names_of(lambda row: row.streamed)

COMPLETIONS = [
    'data: {"id":"c","choices":[{"index":0,"text":"Grüße","finish_reason":null}]}\n\n'.encode(),
    'data: {"id":"c","choices":[{"index":0,"text":" \u2028x","finish_reason":"length"}]}\n\n'.encode(),
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
]
MESSAGES = [
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":7}}}\n\n',
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
]
RESPONSES = [
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"Hi"}\n\n',
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"r","usage":'
    b'{"input_tokens":7,"output_tokens":2},"metadata":"%s"}}\n\n' % ("ü".encode() + b"x" * 3_000),
]
INCOMPLETE = [
    *RESPONSES[:2],
    b'data: {"type":"response.incomplete","response":{"id":"r","usage":{"input_tokens":7,"output_tokens":2},'
    b'"incomplete_details":{"reason":"max_output_tokens"}}}\n\n',
]
# Answers without a stream, to a request of one text.
_USAGE = b'"usage":{"prompt_tokens":7,"total_tokens":7}'
DOCUMENTS: dict[EndpointName, list[bytes]] = {
    "embeddings": [b'{"id":"e","data":[{"index":0,"embedding":[0.25,-1', b".5e-3,2]}]," + _USAGE + b"}"],
    "pooling": [b'{"id":"p","data":[{"index":0,"data":[[', b"1,2],[3]]}]," + _USAGE + b"}"],
    "rerank": [
        b'{"id":"r","results":[{"index":0,"document":{"text":"[1 \\"',
        b'a"},"relevance_score":0.5}],' + _USAGE + b"}",
    ],
    "score": [b'{"id":"s","data":[{"index":0,"score":', b"0.5}]," + _USAGE + b"}"],
}
OF_ENDPOINTS: dict[EndpointName, list[bytes]] = {
    "chat": ANSWER,
    "completions": COMPLETIONS,
    "messages": MESSAGES,
    "responses": RESPONSES,
    **DOCUMENTS,
}
