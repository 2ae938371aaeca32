# CPU worker, and a control plane that starts its workers in the same container (the demo).
#   docker build -f docker/worker_cpu.Dockerfile -t dflash-mesh/worker-cpu .
# TORCH_INDEX names an index with CPU wheels of torch; without it the default build is taken.
FROM python:3.12-slim-bookworm

ARG TORCH_INDEX=""
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    HF_HUB_OFFLINE=1

RUN useradd --create-home --uid 10001 mesh
WORKDIR /app
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY shared ./shared
COPY services ./services
COPY control_plane ./control_plane
COPY workers ./workers
RUN pip install --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} .

RUN mkdir /data && chown mesh:mesh /data
USER 10001
VOLUME /data
EXPOSE 8080
ENTRYPOINT ["dflash-mesh"]
CMD ["up", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]
