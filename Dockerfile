# A small image with Outlast, on top of an image that has torch:
#   docker build --build-arg BASE=pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime -t outlast .
#   docker run --rm --gpus=all --shm-size=16g outlast run --nproc-per-node=gpu /job/train.py
# /dev/shm must hold two copies of a node's state (five with copies on other hosts).
ARG BASE=pytorch/pytorch:latest
FROM ${BASE}
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir '/src[cli,stacks,stores,tls,metrics]' && rm -rf /src
# The first process forwards signals and reaps what is left, as `outlast run` does itself.
ENTRYPOINT ["outlast"]
CMD ["--help"]
