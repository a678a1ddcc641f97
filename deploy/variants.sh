# shellcheck shell=sh disable=SC2034
# What start.sh knows of the variants. Written by `python -m inferload.deploy.shell` from deploy/variants/*.yaml: change those.

list_variants() {
    cat <<'=END='
llama3-baseline
llama3-awq
llama3-gptq
llama3-tp2
llama3-tp4
llama3-tp2-awq
llama3-balanced
llama3-tp2-seqs-512
llama70-base
llama70-draft
llama70-fp8
llama70-throughput
llama2-70b-awq
llama31-base
llama31-no-prefix-caching
llama31-no-chunking
llama31-chunk-2048
llama31-chunk-4096
llama31-chunk-8192
llama31-chunk-16384
llama31-chunk-32768
llama31-kv-fp8
llama31-fp8
llama31-awq
llama31-awq-kv-fp8
llama31-gptq
llama31-bnb
llama31-eager
llama31-graphs-256
llama31-seqs-1
llama31-seqs-8
llama31-seqs-64
llama31-seqs-256
llama31-seqs-512
llama31-memory-95
llama31-tp2
llama31-ttft
llama31-tpot
llama31-clean
qwen72-base
qwen72-clean
qwen72-clean-seqs-512
qwen25-baseline
qwen25-awq
qwen25-gptq
qwen25-tp2
qwen25-tp4
qwen25-tp2-awq
qwen25-balanced
t4-baseline
t4-prefix-caching
t4-chunked-8192
t4-chunked-2048
t4-all
t4-recommended
qwen36-mtp
qwen36-no-mtp
tiny-baseline
tiny-prefix-caching
tiny-chunked-2048
tiny-chunked-512
tiny-all
tiny-ngram
tiny-kv-fp8
tiny-seqs-1
tiny-seqs-2
tiny-starved
=END=
}

launch_always() {
    launch "$@" --enable-per-request-metrics --enable-prompt-tokens-details --custom-histogram-buckets '{"request_latency":[0.001,0.002,0.005,0.01,0.02,0.03,0.05,0.075,0.1,0.15,0.2,0.3,0.5,0.75,1.0,1.5,2.0,3.0,5.0,7.5,10.0,15.0,20.0,30.0,60.0,120.0,300.0,600.0]}'
}

use_variant() {
    case $1 in
    llama3-baseline)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Meta-Llama-3-8B-Instruct --dtype float16 --tensor-parallel-size 1
        ;;
    llama3-awq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always casperhansen/llama-3-8b-instruct-awq --dtype float16 --tensor-parallel-size 1 --quantization awq
        ;;
    llama3-gptq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ --dtype float16 --tensor-parallel-size 1 --quantization gptq
        ;;
    llama3-tp2)
        simulated_as=a100-llama3-8b gpus=2
        launch_always meta-llama/Meta-Llama-3-8B-Instruct --dtype float16 --tensor-parallel-size 2
        ;;
    llama3-tp4)
        simulated_as=a100-llama3-8b gpus=4
        launch_always meta-llama/Meta-Llama-3-8B-Instruct --dtype float16 --tensor-parallel-size 4
        ;;
    llama3-tp2-awq)
        simulated_as=a100-llama3-8b gpus=2
        launch_always casperhansen/llama-3-8b-instruct-awq --dtype float16 --tensor-parallel-size 2 --quantization awq
        ;;
    llama3-balanced)
        simulated_as=a100-llama3-8b gpus=1
        launch_always casperhansen/llama-3-8b-instruct-awq --dtype float16 --tensor-parallel-size 1 --quantization awq --enable-prefix-caching
        ;;
    llama3-tp2-seqs-512)
        simulated_as=a100-llama3-8b gpus=2
        launch_always meta-llama/Meta-Llama-3-8B-Instruct --dtype float16 --tensor-parallel-size 2 --max-num-seqs 512
        ;;
    llama70-base)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192
        ;;
    llama70-draft)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192 --speculative-config '{"model":"meta-llama/Llama-3.1-8B-Instruct","num_speculative_tokens":5,"method":"draft_model"}'
        ;;
    llama70-fp8)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192 --quantization fp8
        ;;
    llama70-throughput)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192 --quantization fp8 --kv-cache-dtype fp8 --max-num-seqs 512 --max-num-batched-tokens 16384 --gpu-memory-utilization 0.95 --enable-prefix-caching --no-enable-log-requests
        ;;
    llama2-70b-awq)
        simulated_as=h200-qwen3-32b gpus=1
        launch_always TheBloke/Llama-2-70B-Chat-AWQ --quantization awq
        ;;
    llama31-base)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192
        ;;
    llama31-no-prefix-caching)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --no-enable-prefix-caching
        ;;
    llama31-no-chunking)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --no-enable-chunked-prefill --max-num-batched-tokens 8192
        ;;
    llama31-chunk-2048)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-batched-tokens 2048
        ;;
    llama31-chunk-4096)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-batched-tokens 4096
        ;;
    llama31-chunk-8192)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-batched-tokens 8192
        ;;
    llama31-chunk-16384)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-batched-tokens 16384
        ;;
    llama31-chunk-32768)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-batched-tokens 32768
        ;;
    llama31-kv-fp8)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --kv-cache-dtype fp8
        ;;
    llama31-fp8)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --quantization fp8
        ;;
    llama31-awq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 --max-model-len 8192 --quantization awq
        ;;
    llama31-awq-kv-fp8)
        simulated_as=a100-llama3-8b gpus=1
        launch_always hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 --max-model-len 8192 --quantization awq --kv-cache-dtype fp8
        ;;
    llama31-gptq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4 --max-model-len 8192 --quantization gptq
        ;;
    llama31-bnb)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --quantization bitsandbytes
        ;;
    llama31-eager)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --enforce-eager
        ;;
    llama31-graphs-256)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-cudagraph-capture-size 256
        ;;
    llama31-seqs-1)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 1
        ;;
    llama31-seqs-8)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 8
        ;;
    llama31-seqs-64)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 64
        ;;
    llama31-seqs-256)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 256
        ;;
    llama31-seqs-512)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 512
        ;;
    llama31-memory-95)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.95
        ;;
    llama31-tp2)
        simulated_as=a100-llama3-8b gpus=2
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --tensor-parallel-size 2
        ;;
    llama31-ttft)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 --enable-prefix-caching --gpu-memory-utilization 0.95
        ;;
    llama31-tpot)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --enable-chunked-prefill --max-num-batched-tokens 2048 --max-num-seqs 64 --enable-prefix-caching
        ;;
    llama31-clean)
        simulated_as=a100-llama3-8b gpus=1
        launch_always meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --no-enable-prefix-caching --gpu-memory-utilization 0.9 --max-num-seqs 256 --no-enable-log-requests
        ;;
    qwen72-base)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 16384
        ;;
    qwen72-clean)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 16384 --no-enable-prefix-caching --gpu-memory-utilization 0.9 --max-num-seqs 256 --no-enable-log-requests
        ;;
    qwen72-clean-seqs-512)
        simulated_as=h200-qwen3-32b gpus=4
        launch_always Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 16384 --no-enable-prefix-caching --gpu-memory-utilization 0.9 --max-num-seqs 512 --no-enable-log-requests
        ;;
    qwen25-baseline)
        simulated_as=a100-llama3-8b gpus=1
        launch_always Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 1 --max-model-len 8192
        ;;
    qwen25-awq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always Qwen/Qwen2.5-7B-Instruct-AWQ --tensor-parallel-size 1 --max-model-len 8192 --quantization awq
        ;;
    qwen25-gptq)
        simulated_as=a100-llama3-8b gpus=1
        launch_always Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4 --tensor-parallel-size 1 --max-model-len 8192 --quantization gptq
        ;;
    qwen25-tp2)
        simulated_as=a100-llama3-8b gpus=2
        launch_always Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2 --max-model-len 8192
        ;;
    qwen25-tp4)
        simulated_as=a100-llama3-8b gpus=4
        launch_always Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 4 --max-model-len 8192
        ;;
    qwen25-tp2-awq)
        simulated_as=a100-llama3-8b gpus=2
        launch_always Qwen/Qwen2.5-7B-Instruct-AWQ --tensor-parallel-size 2 --max-model-len 8192 --quantization awq
        ;;
    qwen25-balanced)
        simulated_as=a100-llama3-8b gpus=1
        launch_always Qwen/Qwen2.5-7B-Instruct-AWQ --tensor-parallel-size 1 --max-model-len 8192 --quantization awq --enable-prefix-caching
        ;;
    t4-baseline)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --dtype float16 --max-model-len 12000 --max-num-batched-tokens 12000 --no-enable-prefix-caching --no-enable-chunked-prefill
        ;;
    t4-prefix-caching)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --dtype float16 --max-model-len 12000 --max-num-batched-tokens 12000 --enable-prefix-caching --no-enable-chunked-prefill
        ;;
    t4-chunked-8192)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --dtype float16 --max-model-len 12000 --max-num-batched-tokens 8192 --no-enable-prefix-caching --enable-chunked-prefill
        ;;
    t4-chunked-2048)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --dtype float16 --max-model-len 12000 --max-num-batched-tokens 2048 --no-enable-prefix-caching --enable-chunked-prefill
        ;;
    t4-all)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --dtype float16 --max-model-len 12000 --max-num-batched-tokens 8192 --enable-prefix-caching --enable-chunked-prefill
        ;;
    t4-recommended)
        simulated_as=t4-qwen3-4b gpus=1
        launch_always Qwen/Qwen3-4B --max-num-batched-tokens 8192 --enable-prefix-caching --enable-chunked-prefill
        ;;
    qwen36-mtp)
        simulated_as=h200-qwen3-32b gpus=2
        launch_always Qwen/Qwen3.6-27B --tensor-parallel-size 2 --dtype float16 --max-model-len 262144 --max-num-seqs 24 --gpu-memory-utilization 0.92 --speculative-config '{"method":"mtp","num_speculative_tokens":4}' --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 32768 --enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3 --override-generation-config '{"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.0,"presence_penalty":0.0,"repetition_penalty":1.0}' --default-chat-template-kwargs '{"enable_thinking":false}'
        ;;
    qwen36-no-mtp)
        simulated_as=h200-qwen3-32b gpus=2
        launch_always Qwen/Qwen3.6-27B --tensor-parallel-size 2 --dtype float16 --max-model-len 262144 --max-num-seqs 24 --gpu-memory-utilization 0.92 --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 32768 --enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3 --override-generation-config '{"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.0,"presence_penalty":0.0,"repetition_penalty":1.0}' --default-chat-template-kwargs '{"enable_thinking":false}'
        ;;
    tiny-baseline)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --no-enable-prefix-caching --no-enable-chunked-prefill --max-num-batched-tokens 4096 --max-model-len 4096
        ;;
    tiny-prefix-caching)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --no-enable-chunked-prefill --max-num-batched-tokens 4096 --max-model-len 4096
        ;;
    tiny-chunked-2048)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --no-enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096
        ;;
    tiny-chunked-512)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --no-enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 512 --max-model-len 4096
        ;;
    tiny-all)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096
        ;;
    tiny-ngram)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096 --speculative-config '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}'
        ;;
    tiny-kv-fp8)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096 --kv-cache-dtype fp8
        ;;
    tiny-seqs-1)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096 --max-num-seqs 1
        ;;
    tiny-seqs-2)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096 --max-num-seqs 2
        ;;
    tiny-starved)
        simulated_as=cpu-tiny gpus=0
        launch_always tiny --enable-prefix-caching --enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096 --num-gpu-blocks-override 48
        ;;
    *) fail "variant $1: not known" ;;
    esac
}
