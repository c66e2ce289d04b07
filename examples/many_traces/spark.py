"""Reduce the traces of a folder on Spark; the page comes from what it leaves: ``perfhooks report SHARES``.

spark-submit examples/many_traces/spark.py s3://bucket/traces /shared/shares
"""

import pathlib
import sys

import fsspec
from pyspark.sql import SparkSession

import perfhooks

traces, shares = sys.argv[1], pathlib.Path(sys.argv[2])
system, folder = fsspec.url_to_fs(traces)
urls = [system.unstrip_protocol(path) for path in system.ls(folder, detail=False) if ".json" in path]
spark = SparkSession.builder.getOrCreate().sparkContext
shares.mkdir(parents=True, exist_ok=True)
for url, share in spark.parallelize(urls, len(urls)).map(lambda url: (url, perfhooks.share(url))).toLocalIterator():
    (shares / f"{url.rpartition('/')[2]}.share").write_bytes(share)
