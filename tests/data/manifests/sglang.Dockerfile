FROM python:3.12-slim AS build
RUN pip install --no-cache-dir "sglang[all]==0.5.12"

FROM build AS server
ENV MODEL deepseek-ai/DeepSeek-V3
ENV TP=8 PORT=30000
ENTRYPOINT exec python3 -m sglang.launch_server --model-path $MODEL --tp $TP \
    # DP attention, as the recipe has it
    --dp ${TP} --enable-dp-attention \
    --context-length 65536 --mem-fraction-static 0.88 --port ${PORT}
CMD ["ignored"]

FROM build AS tester
CMD ["pytest"]
