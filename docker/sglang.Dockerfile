# SGLang server that a generator attaches to by URL (generator.sglang.urls). SGLang pins its own
# torch, so it has an image of its own.
#   docker build -f docker/sglang.Dockerfile -t dflash-mesh/sglang .
#   docker run --gpus all -v /models:/models -p 30000:30000 dflash-mesh/sglang --model-path /models/TARGET
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DEBIAN_FRONTEND=noninteractive

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv build-essential \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mesh \
    && python3 -m venv /opt/sglang
ENV PATH=/opt/sglang/bin:$PATH
RUN pip install "sglang>=0.5.14"

USER 10001
EXPOSE 30000
ENTRYPOINT ["python", "-m", "sglang.launch_server", "--host", "0.0.0.0", "--port", "30000"]
CMD ["--help"]
