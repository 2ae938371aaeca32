# GPU worker: target_forward, drafter_trainer, evaluator and the embedded engine on CUDA.
#   docker build -f docker/worker_gpu.Dockerfile -t dflash-mesh/worker-gpu .
# Run with: docker run --gpus all --shm-size=16g ...  (the shm plane of the links needs /dev/shm)
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    DEBIAN_FRONTEND=noninteractive

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv build-essential \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 mesh \
    && python3 -m venv /opt/mesh
ENV PATH=/opt/mesh/bin:$PATH
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY shared ./shared
COPY services ./services
COPY control_plane ./control_plane
COPY workers ./workers
RUN pip install .

RUN mkdir /data && chown mesh:mesh /data
USER 10001
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["dflash-mesh"]
CMD ["up", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]
