# Control plane: API, status page, supervisor. Built from the repository root:
#   docker build -f docker/control_plane.Dockerfile -t dflash-mesh/control-plane .
# In a deployment where it also starts local workers, use the worker images instead: they hold
# everything this one does.
FROM python:3.12-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 10001 mesh
WORKDIR /app
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY shared ./shared
COPY services ./services
COPY control_plane ./control_plane
COPY workers ./workers
# The control plane never imports torch, so its dependencies leave torch and transformers out.
RUN grep -viE '^(torch|transformers|nvidia|triton)' constraints.txt > /tmp/constraints.txt \
    && python -c "import tomllib; d = tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']; print('\n'.join(x for x in d if not x.startswith(('torch', 'transformers'))))" > /tmp/requirements.txt \
    && pip install --constraint /tmp/constraints.txt --requirement /tmp/requirements.txt \
    && pip install --no-deps .

RUN mkdir /data && chown mesh:mesh /data
USER 10001
VOLUME /data
EXPOSE 8080
# Listening beyond loopback needs a token: pass DFLASH_MESH_TOKEN.
ENTRYPOINT ["dflash-mesh"]
CMD ["up", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]
