"""x"""
import sys
from tests.cluster.lifecycle import up, down, kubectl
from tests.cluster.paths import InstancePaths
def main():
    if sys.argv[1]=="up": print(up("dev"))
    elif sys.argv[1]=="down": print(down("dev"))
    else: print(kubectl(InstancePaths("dev"), *sys.argv[2:]))
